"""Learned memories as scikit-learn estimators."""

from typing import TYPE_CHECKING, Any

from isthmus.cluster.basin_flow import BasinFlow
from isthmus.cluster.clam import ClAM
from isthmus.cluster.crp import ClAMCRP, ClAMCRPELBO
from isthmus.cluster.elbo import ClAMELBO, Flow, elbo_energy, elbo_flow
from isthmus.cluster.mean_shift import GaussianMeanShift
from isthmus.cluster.table_clusters import StreamedClusters, TableClusters, refit_agreement
from isthmus.cluster.tabular import TableModel
from isthmus.extras import require

if TYPE_CHECKING:
    from isthmus.cluster.streamed import cluster_file

__all__ = [
    "BasinFlow",
    "ClAM",
    "ClAMCRP",
    "ClAMCRPELBO",
    "ClAMELBO",
    "Flow",
    "GaussianMeanShift",
    "StreamedClusters",
    "TableClusters",
    "TableModel",
    "cluster_file",
    "elbo_energy",
    "elbo_flow",
    "refit_agreement",
]


def __getattr__(name: str) -> Any:
    if name == "cluster_file":  # which needs the extra "tables"
        require("pandas", "pyarrow")
        from isthmus.cluster.streamed import cluster_file

        return cluster_file
    raise AttributeError(f"module 'isthmus.cluster' has no attribute {name!r}")
