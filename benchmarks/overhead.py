"""Print what a call of log_prob costs beyond its arithmetic.

    python benchmarks/overhead.py

Four points, 50 memories, 3 coordinates: so few numbers that the time is that of calls. The plain
computation of the same density is a few lines of torch. To compare with another version, run this
file with its sources on PYTHONPATH.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable

import torch
from torch import Tensor

import isthmus as ist

CALLS, REPEATS, SIGMA = 200, 40, 0.5


def plain(x: Tensor, memories: Tensor) -> Tensor:
    """Return the log-density of a kernel density estimate."""
    squares = torch.cdist(x, memories).square()
    scale = math.log(len(memories)) + 0.5 * x.shape[1] * math.log(2 * math.pi * SIGMA**2)
    return torch.logsumexp(-squares / (2 * SIGMA**2), -1) - scale


def microseconds(call: Callable[[], object]) -> float:
    """Return the least processor time of a call among repeats, which others disturb least."""
    times = timeit.repeat(call, number=CALLS, repeat=REPEATS, timer=time.process_time)
    return 1e6 * min(times) / CALLS


def main() -> None:
    """Print the time of both, and their ratio."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    memories = torch.randn(50, 3, generator=generator)
    x = torch.randn(4, 3, generator=generator)
    kde = ist.GaussianKDE(memories, SIGMA)
    torch.testing.assert_close(kde.log_prob(x), plain(x, memories), rtol=1e-4, atol=1e-4)
    ours, least = microseconds(lambda: kde.log_prob(x)), microseconds(lambda: plain(x, memories))
    print(f"log_prob {ours:.0f} µs, plain torch {least:.0f} µs: {ours - least:.0f} µs of overhead,")
    print(f"{ours / least:.2f} times the plain computation")


if __name__ == "__main__":
    main()
