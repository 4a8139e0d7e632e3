"""Reading of samples by id, transfer of batches to the device, and a digest of the data.

Main entry points are :func:`reader`, :func:`to_device` and :func:`data_digest`. They work on the samples of a
:class:`~ddp_trainer.train.data.task.Task`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from ddp_trainer.train.data.batch_parts import map_parts
from ddp_trainer.train.data.task import Batch, Samples, SupportsDataDigest, Task
from ddp_trainer.train.utils.value_digest import feed

_FINGERPRINT_SAMPLES = 8


def is_stream(samples: Samples | Iterable[Any]) -> bool:
    """Return True if the samples can only be read in order."""
    return isinstance(samples, IterableDataset) or not hasattr(samples, "__getitem__")


def many_reader(samples: Samples) -> Callable[[Tensor], Batch] | None:
    """Return the fastest function of the samples that reads several of them in one call.

    Returns:
        A function from int64 ids, shape ``(n,)``, to a collated batch. None if the samples have no such function.
    """
    whole = getattr(samples, "batch", None)
    if callable(whole):
        return whole  # type: ignore[no-any-return] # a wrong signature fails in the call
    many = getattr(samples, "__getitems__", None)
    if callable(many):
        return lambda ids: default_collate(many(ids.tolist()))
    return None


def reader(samples: Samples) -> Callable[[Tensor], Batch]:
    """Return a function from int64 ids, shape ``(n,)``, to a collated batch."""
    return many_reader(samples) or (lambda ids: default_collate([samples[index] for index in ids.tolist()]))


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with every tensor on the device. Copies to a GPU may be asynchronous."""
    if device.type == "cpu":
        return batch
    return map_parts(lambda part: part.to(device, non_blocking=True) if isinstance(part, Tensor) else part, batch)


def data_digest(task: Task, samples: Samples | Iterable[Any]) -> str:
    """Return a string that identifies the training samples.

    This is the digest of the task or of the samples if they provide one. Otherwise it is the type name of a stream, or
    a SHA-256 of the number of samples and up to eight samples at equal distances.
    """
    for provider in (task, samples):
        if isinstance(provider, SupportsDataDigest):
            return provider.data_digest()
    if is_stream(samples):
        # Samples of a stream cannot be read without consuming them.
        return f"stream {type(samples).__qualname__}"
    samples = cast("Samples", samples)
    count = len(samples)
    sha = hashlib.sha256(str(count).encode())
    for index in sorted({count * part // _FINGERPRINT_SAMPLES for part in range(_FINGERPRINT_SAMPLES)}):
        feed(sha.update, samples[index])
    return sha.hexdigest()
