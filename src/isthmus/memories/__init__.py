"""Closed-form energies, a file each."""

from isthmus.memories.base import GaussianMemory, Memory
from isthmus.memories.crp import CRPMixture
from isthmus.memories.epanechnikov import EpanechnikovKDE
from isthmus.memories.hopfield import Hopfield
from isthmus.memories.kde import GaussianKDE
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.memories.vmf import VonMisesFisherMixture

__all__ = [
    "CRPMixture",
    "EpanechnikovKDE",
    "GaussianKDE",
    "GaussianMemory",
    "Hopfield",
    "Memory",
    "Mixture",
    "ModernHopfield",
    "VonMisesFisherMixture",
]
