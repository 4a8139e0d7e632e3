"""Batches: reading of samples by id, merging, division, transfer to the device, and a digest of the data.

Collated batches are structures of parts: :func:`merge` concatenates them, :func:`micro_batches` divides one. Other
entry points are :func:`reader`, :func:`to_device` and :func:`data_digest`. They work on the samples of a
:class:`~ddp_trainer.train.data.task.Task`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from ddp_trainer.train.data.task import Batch, Samples, SupportsDataDigest, Task
from ddp_trainer.train.utils.errors import BadTask


def feed(update: Callable[[bytes], object], value: Any) -> None:
    """Pass names, types, shapes and bits of nested mappings and lists of tensors and plain values to a hash.

    Args:
        update: Method ``update`` of the hash.
        value: The values. Others than tensors count by their ``repr``.
    """
    if isinstance(value, Tensor):
        update(f"{value.dtype} {tuple(value.shape)};".encode())
        update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        update(f"{len(value)} named;".encode())
        for key, item in value.items():
            update(f"{key!r};".encode())
            feed(update, item)
    elif isinstance(value, list | tuple):
        update(f"{len(value)};".encode())
        for item in value:
            feed(update, item)
    else:
        update(f"{value.hex() if isinstance(value, float) else repr(value)};".encode())


def sha256(value: Any) -> str:
    """Return the hexadecimal SHA-256 of nested mappings and lists of tensors and plain values.

    The digest covers names, types, shapes and bits.

    >>> import torch
    >>> sha256({"weight": torch.zeros(2)}) == sha256({"weight": torch.zeros(2)})
    True
    >>> sha256({"weight": torch.zeros(2)}) == sha256({"weight": -torch.zeros(2)})
    False
    """
    sha = hashlib.sha256()
    feed(sha.update, value)
    return sha.hexdigest()


def map_parts(function: Callable[..., Any], *batches: Batch) -> Batch:
    """Return a batch of the same structure with the results of a function for each part.

    Mappings, tuples and lists are structure, and everything else in them is a part. A tuple or list of plain values, as
    of one name per sample, is one part.

    Args:
        function: Receives the parts at the same place in all batches.
        *batches: One or more batches of the same structure.

    Raises:
        ValueError, KeyError: The batches have different structures.
    """
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: map_parts(function, *(batch[key] for batch in batches)) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(map_parts(function, *part) for part in zip(*batches, strict=True)))
    if isinstance(first, tuple | list) and any(isinstance(part, Tensor | Mapping | tuple | list) for part in first):
        return type(first)(map_parts(function, *part) for part in zip(*batches, strict=True))
    return function(*batches)


def merge(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, in order.

    Raises:
        BadTask: The batches differ in more than the number of samples.
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return map_parts(_concat_parts, *batches)
    except (RuntimeError, TypeError, KeyError, ValueError) as err:
        raise BadTask(
            f"--level fast computes a rank's batch slices as one, and they do not go together: {err}".rstrip(".") + ".",
            hint="Let all samples collate to tensors of one shape, or give --level ordered.",
        ) from None


def _concat_parts(*parts: Any) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], tuple | list):
        # Values that are not tensors, such as names: one per sample.
        return type(parts[0])(chain.from_iterable(parts))
    raise TypeError(f"a {type(parts[0]).__name__} cannot be joined with another")


def micro_batches(batch: Batch, samples: int, most: int) -> Sequence[Batch]:
    """Split a batch into consecutive micro-batches.

    Args:
        batch: Collated samples.
        samples: Number of samples in the batch.
        most: Largest number of samples in a micro-batch.

    Raises:
        BadTask: A part of the batch does not have ``samples`` entries.
    """
    if samples <= most:
        return (batch,)
    pieces = [slice(start, start + most) for start in range(0, samples, most)]
    return [map_parts(partial(_slice_part, samples=samples, where=where), batch) for where in pieces]


def _slice_part(part: Any, samples: int, where: slice) -> Any:
    if isinstance(part, Tensor | tuple | list) and len(part) == samples:
        return part[where]
    size = f"{len(part)} entries" if hasattr(part, "__len__") else "no length"
    raise BadTask(
        f"--micro-batch cuts a batch of {samples} samples, but a {type(part).__name__} in it has {size}.",
        hint="Let the samples collate to tensors whose first dimension counts samples, or leave --micro-batch out.",
    )


_FINGERPRINT_SAMPLES = 8


def is_stream(samples: Samples | Iterable[Any]) -> bool:
    """Return True if the samples can only be read in order."""
    return isinstance(samples, IterableDataset) or not hasattr(samples, "__getitem__")


def many_reader(samples: Samples) -> Callable[[Tensor], Batch] | None:
    """Return the fastest function of the samples that reads several of them in one call.

    Returns:
        A function from int64 ids, shape ``(n,)``, to a collated batch. None if the samples have no such function.
    """
    read_batch = getattr(samples, "batch", None)
    if callable(read_batch):
        return read_batch  # type: ignore[no-any-return] # a wrong signature fails in the call
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
