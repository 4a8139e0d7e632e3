"""Digests of nested values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


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
