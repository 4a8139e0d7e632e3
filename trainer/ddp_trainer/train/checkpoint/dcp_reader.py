"""Sharded checkpoints: the chunks that each rank writes, and a reader for any layout.

:func:`local_state_dict` selects the chunks of this rank. Every tensor has a name that does not depend on the layout.
Model tensors are ``model.<name>``, as in the model's state dict. Optimizer tensors are ``optimizer.<number>.<key>``,
numbered as in an optimizer of the complete model. A rank writes chunks: an offset in the complete tensor, and the data.
The save planner of ``torch.distributed.checkpoint`` finds the chunks on a rank, because it supports every way in which
torch shards a tensor. If several ranks hold a chunk, the layout determines which one writes it, so the choice needs no
communication. Replicas after the first do not write, since they may join and leave.

:func:`take_pieces` fills a sharded model on each rank with the pieces it needs; :func:`assemble_state` builds the
complete state in one process. Files are mapped into memory, so only the requested part of a chunk is read. The load
planner of ``torch.distributed.checkpoint`` decides which part of which chunk a rank needs. The rest of that package
accepts :class:`ShardedCheckpointReader` too: ``dcp.load(state, storage_reader=ShardedCheckpointReader(directory))``.
Only tensors and plain values are unpickled; torch's own metadata reader would execute code from the file. The module
imports ``torch.distributed.checkpoint``, so it is imported only for a sharded checkpoint.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.optim import Optimizer

from ddp_trainer.common.parallel_dims import DIMENSIONS
from ddp_trainer.train.checkpoint.manifest import MANIFEST, Manifest
from ddp_trainer.train.utils.errors import CheckpointMismatch

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
TENSORS: Final = "tensors"
"""Key in a file: name of a tensor → its shape and chunks."""
VALUES: Final = "values"
"""Key in a file: name → value of the optimizer's state that is not a tensor."""


def local_state_dict(model: nn.Module, optimizer: Optimizer, sharded: ShardedState) -> dict[str, Any]:
    """Return the tensors and values of model and optimizer that this rank writes.

    The tensors share memory with the model and the optimizer.
    """
    written: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, tensor in weights_here(model).items():
        if _is_first(tensor, name, sharded):
            written[f"{MODEL}.{name}"] = tensor
    for weight, number, name in enumerate_params(model, optimizer):
        for key, value in optimizer.state.get(weight, {}).items():
            is_like_weight = isinstance(value, Tensor) and value.shape == weight.shape
            if not _is_first(weight if is_like_weight else value, name, sharded):
                continue
            known = f"{OPTIMIZER}.{number}.{key}"
            if isinstance(value, Tensor):
                written[known] = value
            else:
                values[known] = value
    return {TENSORS: _chunks(written), VALUES: values}


def weights_here(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state dict without the weights of other pipeline stages, which are on the meta device."""
    return {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}


def enumerate_params(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[Tensor, int, str]]:
    """Yield each weight of an optimizer on this rank, with its number and its name in the complete model."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in enumerate(weights):
        if not weight.is_meta:
            yield weight, number, names.get(id(weight), "")


def _chunks(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the local chunks of each tensor with their offsets; empty chunks of non-empty tensors are omitted."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    found: dict[str, Any] = {}
    for item in planner.create_local_plan().items:
        data, tensor = item.tensor_data, planner.resolve_data(item)
        assert data is not None  # noqa: S101 - set for every tensor
        assert isinstance(tensor, Tensor)  # noqa: S101 - as above
        if tensor.numel() or not math.prod(data.size):
            entry = found.setdefault(item.index.fqn, {"size": list(data.size), "chunks": []})
            entry["chunks"].append((list(data.chunk.offsets), tensor.detach()))
    return found


def _is_first(tensor: object, name: str, sharded: ShardedState) -> bool:
    """Return True if this rank writes its piece of a tensor that belongs to the weight ``name``.

    Among the ranks with the same piece, the one with the lowest coordinate in every mesh dimension writes it. For the
    pipeline dimension, the lowest is the first stage that has the weight.
    """
    cut, place = _cut_along(tensor, sharded), sharded.mesh.place
    return all(
        dimension.name in cut
        or getattr(place, dimension.name) == (sharded.first_stage_of(name) if dimension.splits_layers else 0)
        for dimension in DIMENSIONS
    )


def _cut_along(tensor: object, sharded: ShardedState) -> set[str]:
    """Return the mesh dimensions along which ranks hold different pieces."""
    if not isinstance(tensor, DTensor):
        return set()
    names = sharded.mesh.dimensions(tensor.device_mesh)
    return {name for name, placement in zip(names, tensor.placements, strict=True) if not placement.is_replicate()}


PIECES: Final = "pieces"
"""Key of the first rank's pieces in the first file, which also has the rest of the state."""


class ShardedCheckpointReader(StorageReader):
    """Storage reader of one sharded checkpoint, for load planners."""

    def __init__(self, directory: str | os.PathLike[str], manifest: Manifest | None = None) -> None:
        """Map the files into memory without reading the tensors.

        Args:
            directory: Directory of the checkpoint.
            manifest: Its manifest; None to read it from the directory.

        Raises:
            CheckpointMismatch: The checkpoint is not sharded, a file contains objects that must not be loaded, or a
                part of a tensor is missing.
            OSError: A file cannot be read.
        """
        self._directory = Path(directory)
        self._manifest = manifest or Manifest.from_json((self._directory / MANIFEST).read_text())
        first, *others = (self._mmap_file(piece.file) for piece in self._manifest.files)
        if PIECES not in first:
            raise self._mismatch("is in one piece, which torch.load reads")
        parts = [first.pop(PIECES), *others]
        self.rest: dict[str, Any] = copy.deepcopy(first)  # a small copy, so that the file need not stay mapped
        """State outside of the pieces."""
        self.values: dict[str, Any] = {name: value for part in parts for name, value in part[VALUES].items()}
        self.sizes: dict[str, torch.Size] = {}
        """Shape of each tensor, by name."""
        self._chunks: dict[str, dict[torch.Size, Tensor]] = {}
        for part in parts:
            for name, entry in part[TENSORS].items():
                self.sizes[name] = torch.Size(entry["size"])
                self._chunks.setdefault(name, {}).update({torch.Size(at): tensor for at, tensor in entry["chunks"]})
        self._check_complete()

    def type_of(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        return next(iter(self._chunks[name].values())).dtype

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the shape and the chunks of every tensor."""
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
        """Copy the planned parts of chunks to their targets."""
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
        """Do nothing: a reader belongs to one directory."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Do nothing: the constructor has mapped the files."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True if the directory has a manifest."""
        return (Path(checkpoint_id) / MANIFEST).is_file()

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read the tensors stored under these names into the targets.

        Args:
            targets: Name → complete tensor or DTensor; written in place.

        Raises:
            CheckpointMismatch: No tensor has this name, or the stored shape differs.
        """
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), self.read_metadata(), is_coordinator=True)
        try:
            plan = planner.create_local_plan()
        except (RuntimeError, ValueError) as err:
            raise self._mismatch(f"is of another model: {str(err).rstrip('.')}") from err
        self.read_data(plan, planner).wait()

    def _mmap_file(self, file: str) -> dict[str, Any]:
        try:
            return torch.load(self._directory / file, map_location="cpu", mmap=True, weights_only=True)  # type: ignore[no-any-return] # torch.load is untyped
        except OSError:
            raise
        except Exception as err:
            why = next(iter(str(err).splitlines()), type(err).__name__)
            raise self._mismatch(f"contains objects in {file} that weights_only=True refuses: {why}") from err

    def _check_complete(self) -> None:
        for name, size in self.sizes.items():
            if sum(chunk.numel() for chunk in self._chunks[name].values()) != math.prod(size):
                raise self._mismatch(f"lacks a part of {name}")

    def _mismatch(self, what: str) -> CheckpointMismatch:
        return CheckpointMismatch(f"The checkpoint {self._directory} {what}.", hint="Give another --checkpoint-dir.")


def take_pieces(directory: Path, manifest: Manifest, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Load this rank's pieces of a sharded model, in place.

    Returns:
        The rest of the state. Its ``optimizer`` entry is the state dict for this rank's optimizer.

    Raises:
        CheckpointMismatch: The checkpoint belongs to another model.
    """
    reader = ShardedCheckpointReader(directory, manifest)
    targets = {f"{MODEL}.{name}": tensor for name, tensor in weights_here(model).items()}
    states: dict[int, dict[str, Any]] = {}
    by_number = _by_number([*reader.sizes, *reader.values])
    for weight, number, _ in enumerate_params(model, optimizer):
        for key, name in by_number.get(number, {}).items():
            if name in reader.values:
                states.setdefault(number, {})[key] = reader.values[name]
                continue
            states.setdefault(number, {})[key] = targets[name] = _allocate_state(reader, name, weight)
    reader.fill(targets)
    return {
        **reader.rest,
        OPTIMIZER: {**reader.rest[OPTIMIZER], "state": states, **_local_param_groups(reader, optimizer)},
    }


def assemble_state(directory: Path, manifest: Manifest, only: str = "") -> dict[str, Any]:
    """Return the complete state as one process has it, with every tensor in memory.

    Args:
        directory: Directory of the checkpoint.
        manifest: Its manifest.
        only: ``"model"`` to load only the model's tensors; empty for all.
    """
    reader = ShardedCheckpointReader(directory, manifest)
    tensors = {
        name: torch.empty(size, dtype=reader.type_of(name))
        for name, size in reader.sizes.items()
        if name.startswith(f"{only}.") or not only
    }
    reader.fill(tensors)
    states: dict[int, dict[str, Any]] = {}
    found = {**tensors, **({} if only else reader.values)}
    for number, keys in _by_number(list(found)).items():
        states[number] = {key: found[name] for key, name in keys.items()}
    model = {name.removeprefix(f"{MODEL}."): tensor for name, tensor in tensors.items() if name.startswith(f"{MODEL}.")}
    return {MODEL: model, **reader.rest, OPTIMIZER: {**reader.rest[OPTIMIZER], "state": states}}


def _by_number(names: Sequence[str]) -> dict[int, dict[str, str]]:
    """Return number of a weight → key → name, for the names of the optimizer's state.

    >>> _by_number(["model.bias", "optimizer.3.step"])
    {3: {'step': 'optimizer.3.step'}}
    """
    found: dict[int, dict[str, str]] = {}
    for name in names:
        if name.startswith(f"{OPTIMIZER}."):
            _, number, key = name.split(".", 2)
            found.setdefault(int(number), {})[key] = name
    return found


def _allocate_state(reader: ShardedCheckpointReader, name: str, weight: Tensor) -> Tensor:
    """Allocate a value of a weight's optimizer state, sharded like the weight if it has its shape."""
    size, kind = reader.sizes[name], reader.type_of(name)
    if size == weight.shape:
        return torch.empty_like(weight.detach(), dtype=kind)
    return torch.empty(size, dtype=kind)


def _local_param_groups(reader: ShardedCheckpointReader, optimizer: Optimizer) -> dict[str, Any]:
    """Return the stored parameter groups with this rank's parameter numbers."""
    own, stored = optimizer.state_dict()["param_groups"], reader.rest[OPTIMIZER]["param_groups"]
    if len(own) != len(stored):
        return {}  # torch raises an error for the different number of groups
    return {
        "param_groups": [{**group, "params": own_group["params"]} for group, own_group in zip(stored, own, strict=True)]
    }
