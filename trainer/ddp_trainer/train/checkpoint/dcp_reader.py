"""A checkpoint in pieces, read under any layout: each rank reads what it needs, or one rank puts the whole together.

Files are mapped into memory, so of a chunk no more is read than what is asked for. What a rank needs of which chunk
says the load planner of ``torch.distributed.checkpoint``; the rest of that package takes :class:`PieceReader` as well,
as ``dcp.load(state, storage_reader=PieceReader(directory))``. Nothing but tensors and plain values is
unpickled, so nobody has to trust a file that torch's own reader of metadata would run.

Imports ``torch.distributed.checkpoint``, so it is imported where there is such a checkpoint alone.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from torch.optim import Optimizer

from ddp_trainer.train.checkpoint.dcp_chunks import MODEL, OPTIMIZER, TENSORS, VALUES, numbered, weights_here
from ddp_trainer.train.checkpoint.manifest import MANIFEST, Manifest
from ddp_trainer.train.utils.errors import CheckpointMismatch

PIECES: Final = "pieces"
"""In the first file, which holds the rest of the state too, the entry that other files consist of."""


class PieceReader(StorageReader):
    """The chunks of one checkpoint, for load planners."""

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest | None = None) -> None:
        """Map the files; nothing of the tensors is read.

        Raises:
            CheckpointMismatch: it is not in pieces, a file holds what must not be loaded, or together they lack a part
                of a tensor.
            OSError: a file cannot be read.
        """
        self._directory = Path(directory)
        self._manifest = manifest or Manifest.from_json((self._directory / MANIFEST).read_text())
        first, *others = (self._mapped(piece.file) for piece in self._manifest.files)
        if PIECES not in first:
            raise self._mismatch("is in one piece, which torch.load reads")
        parts = [first.pop(PIECES), *others]
        self.rest: dict[str, Any] = copy.deepcopy(first)  # small, and not to keep the file mapped
        """All of the state that does not lie in pieces."""
        self.values: dict[str, Any] = {name: value for part in parts for name, value in part[VALUES].items()}
        self.sizes: dict[str, torch.Size] = {}
        """Shapes of all tensors, by name."""
        self._chunks: dict[str, dict[torch.Size, Tensor]] = {}
        for part in parts:
            for name, entry in part[TENSORS].items():
                self.sizes[name] = torch.Size(entry["size"])
                self._chunks.setdefault(name, {}).update({torch.Size(at): tensor for at, tensor in entry["chunks"]})
        self._demand_all()

    def type_of(self, name: str) -> torch.dtype:
        """Of a tensor's numbers."""
        return next(iter(self._chunks[name].values())).dtype

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Every tensor's shape and chunks."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=self.type_of(name)),
                    self.sizes[name],
                    [ChunkStorageMetadata(at, tensor.size()) for at, tensor in chunks.items()],
                )
                for name, chunks in self._chunks.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what is planned to where it belongs."""
        with torch.no_grad():
            for item in plan.items:
                at = item.storage_index.offset
                stored = self._chunks[item.storage_index.fqn][torch.Size(at or ())]
                for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    stored = stored.narrow(dimension, start, length)
                target = planner.resolve_tensor(item)
                target.detach().copy_(stored)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A reader is of one directory."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether there is a manifest."""
        return (Path(checkpoint_id) / MANIFEST).is_file()

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read into these tensors, whole ones or pieces, what is stored under their names.

        Raises:
            CheckpointMismatch: there is no such tensor, or one of another shape.
        """
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), self.read_metadata(), is_coordinator=True)
        try:
            plan = planner.create_local_plan()
        except (RuntimeError, ValueError) as err:
            raise self._mismatch(f"is of another model: {str(err).rstrip('.')}") from err
        self.read_data(plan, planner).wait()

    def _mapped(self, file: str) -> dict[str, Any]:
        try:
            return torch.load(self._directory / file, map_location="cpu", mmap=True, weights_only=True)  # type: ignore[no-any-return] # torch.load is untyped
        except OSError:
            raise
        except Exception as err:
            why = next(iter(str(err).splitlines()), type(err).__name__)
            raise self._mismatch(f"holds in {file} what is not loaded for safety: {why}") from err

    def _demand_all(self) -> None:
        for name, size in self.sizes.items():
            if sum(chunk.numel() for chunk in self._chunks[name].values()) != math.prod(size):
                raise self._mismatch(f"lacks a part of {name}")

    def _mismatch(self, what: str) -> CheckpointMismatch:
        return CheckpointMismatch(f"The checkpoint {self._directory} {what}.", hint="Give another --checkpoint-dir.")


def take_pieces(directory: Path, manifest: Manifest, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Give a spread model its pieces, in place.

    Returns:
        The rest of the state, in which ``optimizer`` is the state of this rank's optimizer, to be loaded by that.

    Raises:
        CheckpointMismatch: it is another model's.
    """
    reader = PieceReader(directory, manifest)
    targets = {f"{MODEL}.{name}": tensor for name, tensor in weights_here(model).items()}
    states: dict[int, dict[str, Any]] = {}
    by_number = _by_number([*reader.sizes, *reader.values])
    for weight, number, _ in numbered(model, optimizer):
        for key, name in by_number.get(number, {}).items():
            if name in reader.values:
                states.setdefault(number, {})[key] = reader.values[name]
                continue
            states.setdefault(number, {})[key] = targets[name] = _room_for(reader, name, weight)
    reader.fill(targets)
    return {**reader.rest, OPTIMIZER: {**reader.rest[OPTIMIZER], "state": states, **_own_groups(reader, optimizer)}}


def assembled(directory: Path, manifest: Manifest, only: str = "") -> dict[str, Any]:
    """The state as one process has it, every tensor whole and in memory.

    ``only``: of the tensors, those of ``model``.
    """
    reader = PieceReader(directory, manifest)
    whole = {
        name: torch.empty(size, dtype=reader.type_of(name))
        for name, size in reader.sizes.items()
        if name.startswith(f"{only}.") or not only
    }
    reader.fill(whole)
    states: dict[int, dict[str, Any]] = {}
    found = {**whole, **({} if only else reader.values)}
    for number, keys in _by_number(list(found)).items():
        states[number] = {key: found[name] for key, name in keys.items()}
    model = {name.removeprefix(f"{MODEL}."): each for name, each in whole.items() if name.startswith(f"{MODEL}.")}
    return {MODEL: model, **reader.rest, OPTIMIZER: {**reader.rest[OPTIMIZER], "state": states}}


def _by_number(names: Sequence[str]) -> dict[int, dict[str, str]]:
    """Of the optimizer's names: number of a weight → key → name.

    >>> _by_number(["model.bias", "optimizer.3.step"])
    {3: {'step': 'optimizer.3.step'}}
    """
    found: dict[int, dict[str, str]] = {}
    for name in names:
        if name.startswith(f"{OPTIMIZER}."):
            _, number, key = name.split(".", 2)
            found.setdefault(int(number), {})[key] = name
    return found


def _room_for(reader: PieceReader, name: str, weight: Tensor) -> Tensor:
    """Memory for a value of a weight's state: cut as the weight is, where it has its shape."""
    size, kind = reader.sizes[name], reader.type_of(name)
    if size == weight.shape:
        return torch.empty_like(weight.detach(), dtype=kind)
    return torch.empty(size, dtype=kind)


def _own_groups(reader: PieceReader, optimizer: Optimizer) -> dict[str, Any]:
    """Groups as they are stored, of the weights that this rank's have."""
    own, stored = optimizer.state_dict()["param_groups"], reader.rest[OPTIMIZER]["param_groups"]
    if len(own) != len(stored):
        return {}  # and torch says so
    return {"param_groups": [{**group, "params": mine["params"]} for group, mine in zip(stored, own, strict=True)]}
