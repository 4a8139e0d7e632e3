"""Write a state as a stream in the file format of ``torch.load``, without copying the tensors.

``torch.save`` holds the GIL while it computes checksums and copies, and saving into memory stores everything twice.
:func:`pack` splits a state into a small pickle and its storages, as in torch's own format: a ZIP archive of
``data.pkl`` and one uncompressed entry per storage. :meth:`Archive.write_to` then writes the archive in pieces, with
calls that release the GIL, so it can run beside the training. ``torch.load(..., weights_only=True)`` and any program
that reads ZIP files can open the file. Data start at multiples of 64 bytes, as in torch's files, so that a file can be
mapped into memory.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

PIECE_BYTES: Final = 4 << 20
"""Bytes checksummed and written at a time. A piece fits into the cache, yet the writer rarely needs the GIL again."""

_PROTOCOL: Final = 2
"""Pickle protocol; ``weights_only`` loads no other."""
_ALIGNMENT: Final = 64
_PADDING: Final = struct.Struct("<HH")
"""Head of the extra field that aligns data: its ID, and the number of bytes that follow."""
_PADDING_ID: Final = 0x4246
_HEADER_BYTES: Final = 30 + struct.calcsize("<HHQQ")
"""Size of an entry's header with its ZIP64 field, without its name and padding."""


class ArchiveStream(Protocol):
    """Output stream of an archive."""

    def write(self, piece: bytes | memoryview, /) -> int:
        """Write the whole piece and return its size in bytes, or raise OSError."""

    def tell(self) -> int:
        """Return the number of bytes written so far."""

    def flush(self) -> None:
        """Write out buffered bytes."""


def _do_nothing() -> None:
    """Do nothing: the storages have their content."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A state that is ready to be written."""

    pickled: bytes
    """The pickle, without the bytes of the tensors."""
    storages: list[Tensor]
    """Storages, uint8 of shape ``(n,)`` each; entry ``data/<position>``. A shared storage appears once."""
    ready: Callable[[], None] = _do_nothing
    """Returns once the storages have their content."""

    @property
    def storage_bytes(self) -> int:
        """Size of all storages, in bytes."""
        return sum(storage.numel() for storage in self.storages)

    def write_to(self, sink: ArchiveStream) -> None:
        """Write the whole archive; tensors on a device are copied to the CPU one at a time.

        Raises:
            OSError: The sink failed to write.
        """
        self.ready()
        with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload] # it needs no more than an ArchiveStream
            _add(archive, sink, "data.pkl", memoryview(self.pickled))
            _add(archive, sink, "byteorder", memoryview(sys.byteorder.encode()))
            for position, storage in enumerate(self.storages):
                _add(archive, sink, f"data/{position}", memoryview(storage.cpu().numpy().data))
            _add(archive, sink, "version", memoryview(b"3\n"))


def pack(state: dict[str, Any]) -> Archive:
    """Split a state of tensors and plain values into a pickle and storages.

    The tensors are not copied, so they must not change until the archive is written.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(state)
    return Archive(buffer.getvalue(), pickler.storages)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Placeholder for a storage in the pickle."""

    key: str
    size_bytes: int


class _Pickler(pickle.Pickler):
    """Pickles tensors in torch's format.

    It refers to a function of ``torch._utils``. Files that torch has saved call it, so torch cannot remove it. It takes
    the bytes of a storage and a dtype, and serves every dtype.
    """

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, _PROTOCOL)
        self.storages: list[Tensor] = []
        self._keys: dict[tuple[torch.device, int], str] = {}

    def persistent_id(self, obj: object) -> tuple[str, object, str, str, int] | None:
        """Return the reference that ``torch.load`` replaces with a storage."""
        if not isinstance(obj, _Stored):
            return None
        return "storage", torch.UntypedStorage, obj.key, "cpu", obj.size_bytes

    def reducer_override(self, obj: object) -> Any:
        """Return how ``torch.load`` rebuilds a tensor; all other objects are pickled as usual."""
        if not isinstance(obj, Tensor):
            return NotImplemented
        stored = _Stored(self._key(obj), obj.untyped_storage().nbytes())
        hooks: OrderedDict[str, object] = OrderedDict()
        view = (obj.storage_offset(), tuple(obj.size()), obj.stride(), False, hooks, obj.dtype)
        return torch._utils._rebuild_tensor_v3, (stored, *view)  # noqa: SLF001 - see the class

    def _key(self, tensor: Tensor) -> str:
        storage = tensor.untyped_storage()
        # Empty storages share the address 0.
        address = storage.data_ptr() or -1 - len(self.storages)
        key = self._keys.setdefault((tensor.device, address), str(len(self.storages)))
        if int(key) == len(self.storages):
            self.storages.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        return key


def _add(archive: zipfile.ZipFile, sink: ArchiveStream, name: str, content: memoryview) -> None:
    """Write one uncompressed entry below ``archive/``, whose data start at a multiple of 64 bytes."""
    # Without a date, an entry has the oldest one of the format, so equal states produce equal files.
    entry = zipfile.ZipInfo(f"archive/{name}")
    padding = -(sink.tell() + _HEADER_BYTES + len(entry.filename) + _PADDING.size) % _ALIGNMENT
    entry.extra = _PADDING.pack(_PADDING_ID, padding) + b"Z" * padding
    with archive.open(entry, "w", force_zip64=True) as stream:
        for start in range(0, content.nbytes, PIECE_BYTES):
            stream.write(content[start : start + PIECE_BYTES])
