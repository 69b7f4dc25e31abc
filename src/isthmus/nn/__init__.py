"""Associative memories as layers of a network, and a loss that learns them."""

from isthmus.deep.transformer import EnergyTransformer
from isthmus.nn.clustering import ClAMLoss
from isthmus.nn.hopfield import Hopfield
from isthmus.nn.pooling import HopfieldLayer, HopfieldPooling

__all__ = ["ClAMLoss", "EnergyTransformer", "Hopfield", "HopfieldLayer", "HopfieldPooling"]
