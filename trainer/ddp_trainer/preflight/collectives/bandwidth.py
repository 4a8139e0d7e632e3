"""From a time to bandwidths, by the formulas of nccl-tests.

Algorithm bandwidth is the size over the time. Bus bandwidth corrects it for what the busiest link must carry, so that
it can be held against the hardware whatever the number of ranks ``n``:

- all_reduce: 2(n-1)/n
- all_gather, reduce_scatter, all_to_all, gather, scatter: (n-1)/n, of the size over all ranks
- broadcast, reduce, send and receive: 1

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and src/gather.cu, scatter.cu, sendrecv.cu
there for those that the document leaves out.
"""

from __future__ import annotations


def twice_but_own(world: int) -> float:
    """2(n-1)/n: every element crosses once to be added up, and once to be handed out.

    >>> twice_but_own(4)
    1.5
    """
    return 2 * (world - 1) / world


def all_but_own(world: int) -> float:
    """(n-1)/n: a rank's own part does not travel.

    >>> all_but_own(4)
    0.75
    """
    return (world - 1) / world


def whole(_world: int) -> float:
    """1: all of it leaves or reaches one rank."""
    return 1.0


def algorithm(size_bytes: int, seconds: float) -> float:
    """Bytes per second."""
    return size_bytes / seconds
