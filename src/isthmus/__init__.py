"""isthmus: associative memory and probabilistic modelling, joined.

An energy function is a negative log-likelihood. So one object can remember (denoise,
complete, retrieve) and know probabilities (density, posterior, sample).

>>> import torch, isthmus as ist
>>> memory = ist.GaussianKDE(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), sigma=1.0)
>>> ist.retrieve(memory, torch.tensor([2.5, 3.0])).state
tensor([3.0000, 4.0000])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported on first use, so that `import isthmus` and the command line's --help do not wait for
# torch: public names by module, and public modules.
_NAMES = {
    "isthmus.compose": "Affine",
    "isthmus.deep.neural": "NeuralEnergy as_energy",
    "isthmus.dynamics.anneal": "Annealed Verdicts anneal judge_draws noise_schedule widen",
    "isthmus.dynamics.diagnostics": "Chains",
    "isthmus.dynamics.nuts": "NUTS",
    "isthmus.dynamics.retrieve": "Retrieval complete retrieve",
    "isthmus.dynamics.sample": "sample sample_chains",
    "isthmus.dynamics.samplers": "HMC MALA Langevin",
    "isthmus.dynamics.tempering": "Tempering",
    "isthmus.energy": "Energy",
    "isthmus.figures.plots": "plot",
    "isthmus.learning": "fit",
    "isthmus.memories": "CRPMixture DenseAssociativeMemory EpanechnikovKDE GaussianKDE Hopfield "
    "LaplaceKDE Mixture ModernHopfield SparseHopfield StudentKDE StudentMixture TableMixture "
    "UniformKDE VonMisesFisherMixture",
    "isthmus.normalizer": "with_normalizer",
    "isthmus.saving": "load save",
    "": "attend attention bandwidth capacity checks cluster datasets deep distributed dynamics "
    "energy errors figures impute incontext learning memories nn normalizer play report study "
    "synthesis tables",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from isthmus.attend import attend as attend
    from isthmus.compose import Affine as Affine
    from isthmus.deep.neural import NeuralEnergy as NeuralEnergy
    from isthmus.deep.neural import as_energy as as_energy
    from isthmus.dynamics.anneal import Annealed as Annealed
    from isthmus.dynamics.anneal import Verdicts as Verdicts
    from isthmus.dynamics.anneal import anneal as anneal
    from isthmus.dynamics.anneal import judge_draws as judge_draws
    from isthmus.dynamics.anneal import noise_schedule as noise_schedule
    from isthmus.dynamics.anneal import widen as widen
    from isthmus.dynamics.diagnostics import Chains as Chains
    from isthmus.dynamics.nuts import NUTS as NUTS
    from isthmus.dynamics.retrieve import Retrieval as Retrieval
    from isthmus.dynamics.retrieve import complete as complete
    from isthmus.dynamics.retrieve import retrieve as retrieve
    from isthmus.dynamics.sample import sample as sample
    from isthmus.dynamics.sample import sample_chains as sample_chains
    from isthmus.dynamics.samplers import HMC as HMC
    from isthmus.dynamics.samplers import MALA as MALA
    from isthmus.dynamics.samplers import Langevin as Langevin
    from isthmus.dynamics.tempering import Tempering as Tempering
    from isthmus.energy import Energy as Energy
    from isthmus.figures.plots import plot as plot
    from isthmus.learning import fit as fit
    from isthmus.memories.crp import CRPMixture as CRPMixture
    from isthmus.memories.gaussian import GaussianKDE as GaussianKDE
    from isthmus.memories.hopfield import DenseAssociativeMemory as DenseAssociativeMemory
    from isthmus.memories.hopfield import Hopfield as Hopfield
    from isthmus.memories.kernels import EpanechnikovKDE as EpanechnikovKDE
    from isthmus.memories.kernels import LaplaceKDE as LaplaceKDE
    from isthmus.memories.kernels import StudentKDE as StudentKDE
    from isthmus.memories.kernels import UniformKDE as UniformKDE
    from isthmus.memories.mixture import Mixture as Mixture
    from isthmus.memories.modern import ModernHopfield as ModernHopfield
    from isthmus.memories.sparse import SparseHopfield as SparseHopfield
    from isthmus.memories.table_mixture import StudentMixture as StudentMixture
    from isthmus.memories.table_mixture import TableMixture as TableMixture
    from isthmus.memories.vmf import VonMisesFisherMixture as VonMisesFisherMixture
    from isthmus.normalizer import with_normalizer as with_normalizer
    from isthmus.saving import load as load
    from isthmus.saving import save as save

__all__ = sorted(["cite", *(name for name, home in _HOMES.items() if home)])


def cite() -> str:
    """Return the BibTeX entries of the library and of the paper that it implements.

    >>> print(cite()[:23])
    @software{isthmus_0_1_0
    """
    return f"""@software{{isthmus_{__version__.replace(".", "_")},
  title   = {{isthmus: associative memory and probabilistic modelling, joined}},
  author  = {{{{The isthmus developers}}}},
  version = {{{__version__}}},
}}
@article{{schaeffer2024bridging,
  title   = {{Bridging Associative Memory and Probabilistic Modeling}},
  author  = {{Schaeffer, Rylan and Zahedi, Nika and Khona, Mikail and Pai, Dhruv and Truong, Sang T.
             and Du, Yilun and Ostrow, Mitchell and Chandra, Sarthak and Carranza, Andres
             and Fiete, Ila R. and Gromov, Andrey and Koyejo, Sanmi}},
  journal = {{arXiv preprint arXiv:2402.10202}},
  year    = {{2024}},
}}
"""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isthmus' has no attribute {name!r}")
    if not _HOMES[name]:
        return import_module(f"isthmus.{name}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__", "cite"])
