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

# Where each public name lives. Imported on first use, so that `import isthmus` and the
# command line's --help do not wait for torch.
_HOMES = {
    "CRPMixture": "isthmus.memories.crp",
    "Chains": "isthmus.dynamics.diagnostics",
    "Energy": "isthmus.energy",
    "EpanechnikovKDE": "isthmus.memories.epanechnikov",
    "GaussianKDE": "isthmus.memories.kde",
    "HMC": "isthmus.dynamics.samplers",
    "Hopfield": "isthmus.memories.hopfield",
    "Langevin": "isthmus.dynamics.samplers",
    "MALA": "isthmus.dynamics.samplers",
    "Mixture": "isthmus.memories.mixture",
    "ModernHopfield": "isthmus.memories.modern",
    "Retrieval": "isthmus.dynamics.retrieve",
    "VonMisesFisherMixture": "isthmus.memories.vmf",
    "complete": "isthmus.dynamics.retrieve",
    "retrieve": "isthmus.dynamics.retrieve",
    "sample": "isthmus.dynamics.sample",
    "sample_chains": "isthmus.dynamics.sample",
}

_MODULES = (
    "attend",
    "attention",
    "capacity",
    "checks",
    "cluster",
    "datasets",
    "dynamics",
    "energy",
    "errors",
    "figures",
    "impute",
    "incontext",
    "memories",
    "report",
    "study",
    "tables",
)

if TYPE_CHECKING:
    from isthmus.attend import attend as attend
    from isthmus.dynamics.diagnostics import Chains
    from isthmus.dynamics.retrieve import Retrieval, complete, retrieve
    from isthmus.dynamics.sample import sample, sample_chains
    from isthmus.dynamics.samplers import HMC, MALA, Langevin
    from isthmus.energy import Energy
    from isthmus.memories.crp import CRPMixture
    from isthmus.memories.epanechnikov import EpanechnikovKDE
    from isthmus.memories.hopfield import Hopfield
    from isthmus.memories.kde import GaussianKDE
    from isthmus.memories.mixture import Mixture
    from isthmus.memories.modern import ModernHopfield
    from isthmus.memories.vmf import VonMisesFisherMixture

__all__ = [
    "HMC",
    "MALA",
    "CRPMixture",
    "Chains",
    "Energy",
    "EpanechnikovKDE",
    "GaussianKDE",
    "Hopfield",
    "Langevin",
    "Mixture",
    "ModernHopfield",
    "Retrieval",
    "VonMisesFisherMixture",
    "complete",
    "retrieve",
    "sample",
    "sample_chains",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
