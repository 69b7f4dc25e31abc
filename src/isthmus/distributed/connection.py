"""Connections to Dask schedulers, checked before any work is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from isthmus.distributed.blocks import INSTALL, find_client, require_connection
from isthmus.errors import ClusterError, InvalidInputError

if TYPE_CHECKING:
    from distributed import Client

# Seconds that a scheduler has to answer, and to find a first worker.
PATIENCE_SECONDS = 10


def connect(address: str, *, security: Any = None) -> Client:
    """Return a client of the Dask scheduler at an address, or raise within seconds.

    Parameters
    ----------
    address : str
        Such as ``tcp://10.0.0.1:8786``, or ``tls://...`` for an encrypted connection.
    security : distributed.Security, optional
        Certificates for ``tls://``; passed on to Dask as it is.

    Returns
    -------
    distributed.Client
        It does not become the default client of the process. Close it, or use it in a ``with``
        statement.
    """
    try:
        from distributed import Client, Security
        from distributed.core import rpc
        from distributed.utils import LoopRunner
    except ImportError:
        raise InvalidInputError(INSTALL) from None

    # Dask's own client would wait for much longer, and cannot be closed when nothing answers.
    async def ask() -> None:
        arguments = (security or Security()).get_connection_args("client")
        async with rpc(address, timeout=PATIENCE_SECONDS, connection_args=arguments) as there:
            await asyncio.wait_for(there.identity(), PATIENCE_SECONDS)

    try:
        LoopRunner().run_sync(ask)
    except Exception as error:  # another kind of server may answer anything
        words = " ".join(f"{error}".split()) or "no answer"
        raise ClusterError(
            f"No Dask scheduler answers at {address} ({words}). `dask scheduler` starts one and "
            "prints its address."
        ) from None
    return Client(address, security=security, set_as_default=False, timeout=PATIENCE_SECONDS)


def as_client(client: Any, security: Any = None) -> Client | None:
    """Return the client of an argument: a client, an address, or None for the default client.

    Raises if there is no worker, and warns if workers have other versions of a package.
    """
    if isinstance(client, str):
        client = connect(client, security=security)
    elif security is not None:
        raise InvalidInputError(
            "security belongs to the address of a scheduler: client='tls://host:port'."
        )
    found = find_client(client)
    if found is not None:
        require_connection(found)
        try:
            found.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError:
            address = found.scheduler_info()["address"]
            raise ClusterError(
                f"The scheduler at {address} has no workers. Start some: dask worker {address}"
            ) from None
        found.get_versions(check=True, packages=["isthmus", "torch", "numpy"])
    return found
