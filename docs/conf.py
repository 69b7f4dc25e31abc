"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

from isthmus import __version__

sys.path.insert(0, str(Path(__file__).parent))
from layers import with_layers
from llms_index import llms_text

project = "isthmus"
author = "The isthmus developers"
release = __version__
language = "en"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # formulas show without a network
]
exclude_patterns = ["_build"]
smartquotes = False  # a quote may be part of a name

# The pages are written for GitHub too: its maths, its fences, its links to headings.
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4

autosummary_generate = False  # tables only; the entries stand below them
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # docstrings say what goes in, and in which shape
autodoc_default_options = {"inherited-members": "Module,BaseException,int"}
maximum_signature_line_length = 88
numpydoc_show_class_members = False  # autodoc does
numpydoc_attributes_as_param_list = True

# The scripts of examples/, in the order of the gallery.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": ExplicitOrder(
        [
            "first_hour.py",
            "plot_denoise_complete_images.py",
            "plot_million_embeddings.py",
            "plot_how_many_clusters.py",
            "plot_cluster_with_gaps.py",
            "plot_stream_with_novelty.py",
            "plot_fill_gaps_with_uncertainty.py",
            "plot_ask_a_table.py",
            "plot_density_and_outliers.py",
            "plot_your_own_energy.py",
            "plot_learn_an_energy.py",
            "plot_deep_memory.py",
            "plot_bandwidth_and_capacity.py",
            "plot_in_context_energies.py",
            "plot_what_a_head_clusters.py",
            "plot_larger_than_memory.py",
            "plot_moving_to_isthmus.py",
            "adapters.py",
        ]
    ),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "remove_config_comments": True,
    "run_stale_examples": True,  # a script shows what the library does now
    "write_computation_times": False,
}

html_theme = "furo"
html_title = "isthmus"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def skip_what_others_document(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a class has from PyTorch, scikit-learn or Python, and document the rest."""
    if what == "module":  # a module exports what it means to
        return None
    home = getattr(obj.fget if isinstance(obj, property) else obj, "__module__", None)
    return True if home is not None and not home.startswith("isthmus") else None


def import_lazy_names(package: str) -> None:
    """Fetch what a package imports on first use, for autodoc sees only what is there."""
    module = import_module(package)
    for name in module.__all__:
        setattr(module, name, getattr(module, name))


def write_llms_text(app: Sphinx, exception: Exception | None) -> None:
    """Put ``llms.txt`` beside the front page."""
    if exception is None and app.builder.format == "html":
        (Path(app.outdir) / "llms.txt").write_text(llms_text(), encoding="utf-8")


def insert_layers(app: Sphinx, page: str, source: list[str]) -> None:
    """Renew the table of layers in the page on the architecture."""
    source[0] = with_layers(source[0])


def setup(app: Sphinx) -> None:
    """Tell Sphinx about the functions above."""
    import_lazy_names("isthmus.study")
    app.connect("autodoc-skip-member", skip_what_others_document)
    app.connect("build-finished", write_llms_text)
    app.connect("source-read", insert_layers)
