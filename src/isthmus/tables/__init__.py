r"""Users' tables: files in and out, whatever their format.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp(), "flowers.csv")
>>> _ = path.write_text("id;length;kind\na1;1,5;rose\na2;;lily\n")
>>> table = read_table(path, label="kind")
>>> table.columns, table.X.tolist(), table.ids.tolist(), table.labels.tolist()
(('length',), [[1.5], [nan]], ['a1', 'a2'], ['rose', 'lily'])
>>> _ = write_table(table, path.with_name("copy.csv"), like=table)
>>> print(path.with_name("copy.csv").read_text())
id;length;kind
a1;1,5;rose
a2;;lily
<BLANKLINE>
"""

from __future__ import annotations

from typing import Any

from isthmus.tables.files import (
    FileFormat,
    Table,
    check_output,
    default_output,
    read_table,
    write_table,
)

__all__ = ["FileFormat", "Table", "check_output", "default_output", "read_table", "write_table"]
__all__ += ["encode"]


def __getattr__(name: str) -> Any:
    if name == "encode":  # needs NumPy, which the help of the command line does without
        from isthmus.tables.encoding import encode

        return encode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
