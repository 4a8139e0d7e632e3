"""Bandwidths from times, by the formulas of nccl-tests.

Algorithm bandwidth is the size divided by the time. Bus bandwidth corrects it for the load of the busiest link, so that
it is comparable to the hardware for every number of ranks ``n``. The factors are:

- all_reduce: 2(n-1)/n
- all_gather, reduce_scatter, all_to_all, gather, scatter: (n-1)/n, of the size over all ranks
- broadcast, reduce, send and receive: 1

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and src/gather.cu, scatter.cu, sendrecv.cu
there for operations that the document omits.
"""

from __future__ import annotations


def all_reduce_factor(world: int) -> float:
    """Return 2(n-1)/n: every element crosses once for the sum, and once for the distribution of the result.

    >>> all_reduce_factor(4)
    1.5
    """
    return 2 * (world - 1) / world


def all_gather_factor(world: int) -> float:
    """Return (n-1)/n: a rank's own part does not travel.

    >>> all_gather_factor(4)
    0.75
    """
    return (world - 1) / world


def full_size(_world: int) -> float:
    """Return 1: the whole message leaves or reaches one rank."""
    return 1.0
