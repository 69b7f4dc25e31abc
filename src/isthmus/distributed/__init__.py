"""Memories whose patterns are on the workers of a Dask cluster."""

from isthmus.distributed.connection import connect
from isthmus.distributed.sharded import Nearest, ShardedMemory, shard

__all__ = ["Nearest", "ShardedMemory", "connect", "shard"]
