"""Read weights in safetensors, in one file or several with an index, through memory mapping.

The entry point is :func:`read`. The format (https://huggingface.co/docs/safetensors, "Format") has three parts: eight
bytes with the length of the header, little endian; the header, JSON with dtype, shape and place of each tensor; the
data. An index, ``*.safetensors.index.json``, maps each tensor to a file beside it under ``weight_map``. A rank that
needs a piece of each weight, or the weights of its stage, reads only those bytes from the disk. The format's own
library does so for one file at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ddp_trainer.train.utils.errors import BadConfig

SAFETENSORS: Final = ".safetensors"
INDEX: Final = ".safetensors.index.json"
_LENGTH: Final = 8
"""Size of the field with the length of the header, in bytes."""
_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, RecursionError)
"""Errors of a header with other values than the format's, of torch's views among them."""


class CorruptSafetensors(Exception):
    """The file violates the format; the message is the reason."""


def is_safetensors(given: Path) -> bool:
    """Return True for a safetensors file, an index, or a directory, which must have one of these."""
    return given.name.endswith((SAFETENSORS, INDEX)) or given.is_dir()


def read(given: Path) -> dict[str, Tensor]:
    """Return every tensor by name, mapped on the CPU and not yet read; do not write to them.

    Raises:
        BadConfig: A file is missing, cannot be read, or is damaged.
    """
    file = _chosen(given) if given.is_dir() else given
    if not file.name.endswith(INDEX):
        return _mmap_file(file)
    found: dict[str, dict[str, Tensor]] = {}
    weights: dict[str, Tensor] = {}
    for name, part in _weight_map(file).items():
        if part not in found:
            found[part] = _mmap_file(file.parent / part)
        if name not in found[part]:
            raise BadConfig(
                f"--init-from is {file}, which lists {name} in {part}, but {part} does not contain it.",
                hint="Give an index that was written with its files.",
            )
        weights[name] = found[part][name]
    return weights


def _chosen(directory: Path) -> Path:
    for suffix in (INDEX, SAFETENSORS):
        files = sorted(entry for entry in directory.iterdir() if entry.name.endswith(suffix))
        if len(files) == 1:
            return files[0]
        if files:
            raise BadConfig(
                f"--init-from is {directory}, which has {len(files)} files of the name *{suffix}.",
                hint="Name one of them, or the index of several.",
            )
    raise BadConfig(
        f"--init-from is {directory}, a directory without weights in safetensors.", hint=f"Name a file, or *{INDEX}."
    )


def _weight_map(index: Path) -> Mapping[str, str]:
    """Return the name of each tensor → the name of a file beside the index."""
    try:
        places = json.loads(index.read_text())["weight_map"]
        foreign = next((entry for entry in places.values() if Path(entry).name != entry), None)
    except OSError as err:
        raise _unreadable(index, err) from None
    except _MALFORMED:
        raise BadConfig(
            f"--init-from is {index}, which is not a safetensors index.", hint='It needs a "weight_map".'
        ) from None
    if foreign is not None:
        raise BadConfig(
            f"--init-from is {index}, which names the file {foreign!r}.", hint="Files lie beside their index."
        )
    return places  # type: ignore[no-any-return] # a mapping of names, as checked above


def _mmap_file(file: Path) -> dict[str, Tensor]:
    try:
        begin, header = _header(file)
        storage = torch.UntypedStorage.from_file(str(file), shared=False, nbytes=file.stat().st_size)
        content = torch.tensor([], dtype=torch.uint8).set_(storage)[begin:]  # type: ignore[arg-type] # torch's stub
        return {name: _tensor(name, entry, content) for name, entry in header.items() if name != "__metadata__"}
    except OSError as err:
        raise _unreadable(file, err) from None
    except (CorruptSafetensors, *_MALFORMED) as err:
        why = str(err) if isinstance(err, CorruptSafetensors) else "its header is none of safetensors"
        raise BadConfig(f"--init-from is {file}, which is damaged: {why}.", hint="Give a whole file.") from None


def _header(file: Path) -> tuple[int, Mapping[str, Any]]:
    """Return the offset of the data in bytes, and the parsed header."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH), "little")
        if size < _LENGTH or length > size - _LENGTH:
            raise CorruptSafetensors(f"its {size} bytes end before its header does")
        return _LENGTH + length, json.loads(stream.read(length))


def _tensor(name: str, entry: Mapping[str, Any], content: Tensor) -> Tensor:
    kind, shape, (begin, end) = _TYPES.get(entry["dtype"]), entry["shape"], entry["data_offsets"]
    if kind is None:
        raise CorruptSafetensors(f"{name} has numbers of the type {entry['dtype']!r}, which is not known")
    if not 0 <= begin <= end <= len(content) or end - begin != math.prod(shape) * kind.itemsize:
        raise CorruptSafetensors(
            f"{name} lies at {begin} to {end} of {len(content)} bytes, and has the shape {tuple(shape)}"
        )
    own = content[begin:end]
    # A view needs data aligned to the element size, so unaligned data are copied.
    aligned = own if own.storage_offset() % kind.itemsize == 0 else own.clone()
    return aligned.view(kind).view(shape)


def _unreadable(file: Path, err: OSError) -> BadConfig:
    return BadConfig(f"--init-from is {file}, which cannot be read: {err.strerror}.", hint="Check the name.")
