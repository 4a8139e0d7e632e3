"""Digest of a whole state, to check whether two runs are equal bit for bit."""

from __future__ import annotations

import hashlib
from typing import Any

from ddp_trainer.train.utils.value_digest import feed


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
