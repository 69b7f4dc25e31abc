"""The clustering study."""

from isthmus.extras import require

require("cloudpickle", "pandas", "pyarrow")
