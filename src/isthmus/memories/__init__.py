"""Closed-form energies, a file each."""

from isthmus.index.policy import IndexReport
from isthmus.memories.base import GaussianMemory, Memory
from isthmus.memories.crp import CRPMixture
from isthmus.memories.dense import DenseAssociativeMemory
from isthmus.memories.epanechnikov import EpanechnikovKDE
from isthmus.memories.grid import TabulatedDensity
from isthmus.memories.hopfield import Hopfield
from isthmus.memories.kde import GaussianKDE
from isthmus.memories.laplace import LaplaceKDE
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.memories.radial import RadialKDE
from isthmus.memories.random_features import RandomFeatureKDE
from isthmus.memories.sparse import SparseHopfield
from isthmus.memories.student import StudentKDE
from isthmus.memories.student_mixture import StudentMixture
from isthmus.memories.uniform import UniformKDE
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
    "RandomFeatureKDE",
    "SparseHopfield",
    "StudentKDE",
    "StudentMixture",
    "TabulatedDensity",
    "UniformKDE",
    "VonMisesFisherMixture",
]
