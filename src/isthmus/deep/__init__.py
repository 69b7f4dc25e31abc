"""Energies that are networks: NeuralEnergy, deep memories, and the Energy Transformer."""

from isthmus.deep.memory import DeepMemory, VisibleMemory
from isthmus.deep.neural import ModuleEnergy, NeuralEnergy, as_energy
from isthmus.deep.neurons import Neurons
from isthmus.deep.synapses import Attention, Bias, Convolution, Dense, Synapse
from isthmus.deep.transformer import EnergyTransformerBlock

__all__ = [
    "Attention",
    "Bias",
    "Convolution",
    "DeepMemory",
    "Dense",
    "EnergyTransformerBlock",
    "ModuleEnergy",
    "NeuralEnergy",
    "Neurons",
    "Synapse",
    "VisibleMemory",
    "as_energy",
]
