"""The process that downloads: over https, redirects too, and of limited size."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import URLError

import numpy as np

from isthmus.paper.datasets.manifest import entry

LARGEST = 2**30
"""Bytes of one download; the largest dataset takes less than a tenth."""


class HttpsOnly(request.BaseHandler):
    """Refuses everything but https, and answers that are too long."""

    handler_order = 100  # before the handlers that would open a connection

    def http_open(self, asked: request.Request) -> Any:
        """Refuse an address, or a redirect to one."""
        raise URLError(f"{asked.full_url} is not an https address")

    ftp_open = file_open = http_open

    def https_response(self, asked: request.Request, response: Any) -> Any:
        """Limit what can be read of an answer."""
        read, left = response.read, LARGEST

        def bounded(amount: int | None = None) -> bytes:
            nonlocal left
            part: bytes = read(left + 1 if amount is None or amount < 0 else amount)
            left -= len(part)
            if left < 0:
                raise URLError(f"{asked.full_url} is larger than {LARGEST} bytes")
            return part

        response.read = bounded
        return response


def main(name: str, scratch: str) -> int:
    """Fetch a dataset in this process, write its arrays to `scratch`, and return an exit code."""
    from isthmus.paper.datasets import loading

    request.install_opener(request.build_opener(HttpsOnly))
    try:
        arrays: dict[str, Any] = loading.fetch(entry(name), scratch)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    except (ValueError, LookupError) as error:
        print(error, file=sys.stderr)
        return loading.NOT_AS_EXPECTED
    np.savez(Path(scratch) / loading.FETCHED, **arrays)
    return 0
