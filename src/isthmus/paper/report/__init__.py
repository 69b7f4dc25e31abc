"""The report on the paper."""

from isthmus.extras import require

require("cloudpickle", "jinja2", "matplotlib", "pandas", "pyarrow")
