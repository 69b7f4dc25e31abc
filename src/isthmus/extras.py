"""Packages that only some parts of the library need, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "tables": ("openpyxl", "pandas", "pyarrow"),
    "report": ("cloudpickle", "jinja2", "matplotlib"),
    "dask": ("dask", "distributed"),
    "play": ("anywidget", "starlette", "uvicorn", "websockets"),
    "hf": ("transformers",),
    "train": ("lightning_fabric",),
}


def advice(module: str) -> str:
    """Return the line that tells how to install a module that is missing.

    >>> advice("pandas")
    "This needs pandas, which is not installed: pip install 'isthmus[tables]'."
    """
    found = next((extra for extra, names in EXTRAS.items() if module in names), None)
    target = module if found is None else f"'isthmus[{found}]'"
    return f"This needs {module}, which is not installed: pip install {target}."


def require(*modules: str) -> None:
    """Raise an ImportError of one line, which names the extra, if a module is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(advice(module), name=module)
