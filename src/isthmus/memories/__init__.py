"""Closed-form energies."""

from isthmus.index.policy import IndexReport
from isthmus.memories.base import Memory
from isthmus.memories.crp import CRPMixture
from isthmus.memories.gaussian import GaussianKDE, GaussianMemory
from isthmus.memories.grid import TabulatedDensity
from isthmus.memories.hopfield import DenseAssociativeMemory, Hopfield
from isthmus.memories.kernels import EpanechnikovKDE, LaplaceKDE, RadialKDE, StudentKDE, UniformKDE
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.memories.sparse import SparseHopfield
from isthmus.memories.table_mixture import StudentMixture, TableMixture
from isthmus.memories.vmf import VonMisesFisherMixture

__all__ = [
    "CRPMixture",
    "DenseAssociativeMemory",
    "EpanechnikovKDE",
    "GaussianKDE",
    "GaussianMemory",
    "Hopfield",
    "IndexReport",
    "LaplaceKDE",
    "Memory",
    "Mixture",
    "ModernHopfield",
    "RadialKDE",
    "SparseHopfield",
    "StudentKDE",
    "StudentMixture",
    "TableMixture",
    "TabulatedDensity",
    "UniformKDE",
    "VonMisesFisherMixture",
]
