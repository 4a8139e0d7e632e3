"""Transfer of a training state from one rank to others, tensor by tensor and in place.

The source first sends the structure of the state, in which tensors have no content. Then it sends the memory of each
tensor in chunks, directly from where it is, by the backend of the group: :func:`broadcast_state` to all ranks,
:func:`exchange_states` within pairs of ranks. Small tensors, and those on another device than the group's, share a
bucket. So neither side needs more memory than the chunks in transfer beyond the state itself.

If a rank is lost meanwhile, the state of the source is intact, and what a target received is incomplete. A target
receives into new memory unless the caller gives it tensors to write to. Only a rank whose own state is of no use to the
next group may give them.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.distributed.group import Group

_AT_ONCE: Final = 32
"""Chunks in transfer at the same time, so that a rank need not wait for the start of each."""
_TEMPORARY_BYTES: Final = 40 << 20
"""Memory for chunks in transfer that are not in the memory of their tensors."""
_CHUNK_BYTES: Final = 8 << 20
"""Largest size of a chunk."""
_ROUND_BYTES: Final = 256 << 20
"""Bytes between two synchronizations of the ranks that do not take part in a transfer."""
_BUCKET_BYTES: Final = 4 << 20
_SMALL_BYTES: Final = 1 << 20
"""Size below which tensors share a bucket."""
_PROTOCOL: Final = 2
"""Pickle protocol; ``weights_only`` loads no other."""


class _StateSpec(NamedTuple):
    """Structure of a state, which every rank has before the content arrives."""

    state: Any
    """The state; on all ranks but the source, its tensors are on the meta device."""
    tensors: list[Tensor]
    """All tensors in it, the same objects."""
    memory_of: list[int]
    """For each tensor, the number of the first one with the same memory, whose content is sent."""
    on_device: list[bool]
    """For each tensor, whether the source has it on the device of its group."""


def broadcast_state(
    state: Any, source: int, group: Group, *, wanted: bool = True, targets: Mapping[str, Any] | None = None
) -> Any:
    """Return the state of rank ``source``; every rank must call it.

    Args:
        state: State of tensors and plain values; used on the source.
        source: Rank that has it.
        group: The ranks.
        wanted: False on a rank that needs no state. It takes part, and returns None.
        targets: Tensors to receive into, at the same keys as in the state. Others are allocated.

    Raises:
        PeerLost: A rank was lost. Targets may be written in part.
    """
    if group.world_size == 1:
        return state
    is_source = group.rank == source
    spec = _state_spec(state, group.device) if is_source else None
    content = group.broadcast(None if spec is None else _dump(spec), source)
    spec = spec or _load(content)
    memory = _packed(spec) if is_source else _allocate(spec, group.device, targets or {}) if wanted else None
    chunks = _chunks(spec, memory, group.device, sends=is_source)
    with group.convert_errors():
        _move(chunks, partial(dist.broadcast, src=source, async_op=True))
    if is_source:
        return state
    return None if memory is None else _unflatten_state(spec, memory)


def exchange_states(
    state: Any, pairs: Sequence[tuple[int, int]], group: Group, *, targets: Mapping[str, Any] | None = None
) -> Any:
    """Send states from the first rank of each pair to the second; every rank must call it.

    More than two ranks synchronize after each 256 MiB, so that a long transfer does not run into the timeout of
    collectives on the ranks that wait for it.

    Args:
        state: State to send, of tensors and plain values; used on the first rank of a pair.
        pairs: (source, target) ranks. No rank is in two pairs.
        group: The ranks.
        targets: Tensors to receive into, as for :func:`broadcast_state`; used on the second rank of a pair.

    Returns:
        The received state on the second rank of a pair, None on all other ranks.

    Raises:
        PeerLost: A rank was lost.
    """
    pair = next((pair for pair in pairs if group.rank in pair), None)
    is_source = pair is not None and group.rank == pair[0]
    spec = _state_spec(state, group.device) if is_source else None
    content = b"" if spec is None else _dump(spec)
    sizes = group.gather(len(content))
    if pair is None:
        while any(group.gather(0)):
            pass
        return None
    move = partial(dist.isend, dst=pair[1]) if is_source else partial(dist.irecv, src=pair[0])
    spec = spec or _StateSpec(None, [], [], [])
    packed = torch.empty(sizes[pair[0]], dtype=torch.uint8, device=group.device)
    if is_source:
        packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    with group.convert_errors():
        _move([_Chunk(packed)], move)
    if not is_source:
        spec = _load(packed.cpu().numpy().tobytes())
    memory = _packed(spec) if is_source else _allocate(spec, group.device, targets or {})
    chunks = _chunks(spec, memory, group.device, sends=is_source)
    is_done = False
    while any(group.gather(int(not is_done))):
        with group.convert_errors():
            is_done = _move(chunks, move, _ROUND_BYTES if group.world_size > len(pair) else math.inf)
    return None if is_source else _unflatten_state(spec, memory)


class _Chunk(NamedTuple):
    """Part of the transfer that is sent at once."""

    memory: Tensor
    """Memory to send or to receive into: uint8, on the device of the group."""
    parts: Sequence[Tensor] = ()
    """Memory of the tensors to fill from it when it has arrived."""
    temporary_bytes: int = 0
    """Size of its memory, if that is not the memory of a tensor of the state."""


def _move(chunks: Iterable[_Chunk], move: Callable[[Tensor], Any], most_bytes: float = math.inf) -> bool:
    """Send or receive chunks, some at the same time, and fill their parts.

    Returns:
        True if no chunks are left, False if ``most_bytes`` were moved.
    """
    moving: deque[tuple[_Chunk, Any]] = deque()
    moved = temporary = 0
    for chunk in chunks:
        temporary += chunk.temporary_bytes
        while moving and (len(moving) == _AT_ONCE or temporary > _TEMPORARY_BYTES):
            temporary -= _finish(*moving.popleft())
        moving.append((chunk, move(chunk.memory)))
        moved += len(chunk.memory)
        if moved >= most_bytes:
            break
    while moving:
        _finish(*moving.popleft())
    return moved < most_bytes


def _finish(chunk: _Chunk, work: Any) -> int:
    """Wait for a chunk, fill its parts, and return the bytes that it no longer needs."""
    work.wait()
    start = 0
    for part in chunk.parts:
        part.copy_(chunk.memory[start : start + len(part)])
        start += len(part)
    return chunk.temporary_bytes


def _chunks(
    spec: _StateSpec, memory: Mapping[int, Tensor] | None, device: torch.device, *, sends: bool
) -> Iterator[_Chunk]:
    """Yield chunks to send or to receive into, of the same sizes in the same order on all ranks.

    Args:
        spec: Structure of the state.
        memory: Number of a tensor → tensor to send or to receive into; None to drop what is received.
        device: Device of the group.
        sends: The tensors are sent, not received.
    """
    small, used = list[Tensor](), 0
    for number, tensor in enumerate(spec.tensors):
        if spec.memory_of[number] != number:
            continue
        flat = _flat(tensor if memory is None else memory[number])
        if len(flat) < _SMALL_BYTES or not spec.on_device[number]:
            for part in flat.split(_BUCKET_BYTES):  # type: ignore[no-untyped-call] # torch's
                if used + len(part) > _BUCKET_BYTES:
                    yield _bucket(small, device, sends=sends)
                    small, used = [], 0
                small.append(part)
                used += len(part)
            continue
        for part in flat.split(_CHUNK_BYTES):  # type: ignore[no-untyped-call] # as above
            # A rank that drops a chunk passes it on to others, so chunks in transfer may not share their memory.
            yield _temporary(torch.empty(len(part), dtype=torch.uint8, device=device)) if part.is_meta else _Chunk(part)
    if small:
        yield _bucket(small, device, sends=sends)


def _bucket(parts: Sequence[Tensor], device: torch.device, *, sends: bool) -> _Chunk:
    """Return a chunk with the content of the parts, or to receive it."""
    if sends:
        return _temporary(torch.cat([part.to(device) for part in parts]))
    return _temporary(torch.empty(sum(map(len, parts)), dtype=torch.uint8, device=device), parts)


def _temporary(memory: Tensor, parts: Sequence[Tensor] = ()) -> _Chunk:
    return _Chunk(memory, parts, len(memory))


def _flat(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor without gaps: uint8, shape ``(bytes,)``."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _state_spec(state: Any, device: torch.device) -> _StateSpec:
    """Return the spec of a state of this rank."""
    tensors: list[Tensor] = []
    _map_leaves(state, lambda leaf: tensors.append(leaf) if isinstance(leaf, Tensor) else None)
    first: dict[object, int] = {}
    memory_of = [first.setdefault(_place(tensor), number) for number, tensor in enumerate(tensors)]
    return _StateSpec(state, tensors, memory_of, [tensor.device.type == device.type for tensor in tensors])


def _place(tensor: Tensor) -> object:
    """Return a value that two tensors have in common that share all their memory, such as tied weights."""
    address = tensor.data_ptr()  # 0 for empty tensors
    return (tensor.device, address, tensor.dtype, tensor.size(), tensor.stride()) if address else id(tensor)


def _packed(spec: _StateSpec) -> dict[int, Tensor]:
    """Return the tensors of the source; one with gaps, such as a transposed part, is copied."""
    return {
        number: tensor if tensor.stride() == _on_meta(tensor).stride() else torch.empty_like(tensor).copy_(tensor)
        for number, tensor in enumerate(spec.tensors)
        if spec.memory_of[number] == number
    }


def _allocate(spec: _StateSpec, device: torch.device, targets: Mapping[str, Any]) -> dict[int, Tensor]:
    """Return tensors to receive into: those of ``targets`` that fit, and new ones."""
    given = dict(_paired(spec.state, targets))
    memory: dict[int, Tensor] = {}
    for number, tensor in enumerate(spec.tensors):
        if spec.memory_of[number] == number:
            place = device if spec.on_device[number] else torch.device("cpu")
            target = given.get(id(tensor))
            if target is None or not _fits(target, tensor, place):
                # empty_like() of a meta tensor imports 500 modules, which takes half a second.
                target = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=place)
            memory[number] = target
    return memory


def _fits(target: Tensor, tensor: Tensor, place: torch.device) -> bool:
    own, wanted = ((one.dtype, one.size(), one.stride()) for one in (target, tensor))
    return target.device.type == place.type and own == wanted


def _paired(state: Any, targets: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield the identity of each tensor of a state that has a tensor at the same keys in ``targets``, and that one."""
    if isinstance(state, Tensor) and isinstance(targets, Tensor):
        yield id(state), targets
    elif isinstance(state, dict) and isinstance(targets, Mapping):
        for name in state.keys() & targets.keys():
            yield from _paired(state[name], targets[name])


def _unflatten_state(spec: _StateSpec, memory: Mapping[int, Tensor]) -> Any:
    """Return the state of a spec with the received tensors in it."""
    content = {id(meta): memory[spec.memory_of[number]] for number, meta in enumerate(spec.tensors)}
    return _map_leaves(spec.state, lambda leaf: content.get(id(leaf), leaf))


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested dicts, lists and tuples in which ``change`` has replaced all other values, in order."""
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attributes of an OrderedDict
        copied.update({name: _map_leaves(item, change) for name, item in value.items()})
        return copied
    if type(value) in {list, tuple}:
        return type(value)(_map_leaves(item, change) for item in value)
    return change(value)


def _dump(spec: _StateSpec) -> bytes:
    """Return a spec in the file format of ``torch.load``.

    The tensors are a list of JSON, because ``weights_only`` takes 0.1 ms for each.
    """
    places: list[int] = []
    leaves = count()

    def empty(leaf: Any) -> Any:
        place = next(leaves)
        if not isinstance(leaf, Tensor):
            return leaf
        places.append(place)
        return None

    state = _map_leaves(spec.state, empty)
    described = [
        (place, str(tensor.dtype), tensor.size(), _on_meta(tensor).stride(), *others)
        for place, tensor, *others in zip(places, spec.tensors, spec.memory_of, spec.on_device, strict=True)
    ]
    pickled, file = pickle.dumps((state, json.dumps(described)), _PROTOCOL), io.BytesIO()
    Archive(pickled, []).write_to(file)
    return file.getvalue()


def _load(content: bytes) -> _StateSpec:
    state, described = torch.load(io.BytesIO(content), weights_only=True)
    rows = json.loads(described)
    tensors = {
        place: torch.empty_strided(size, stride, dtype=getattr(torch, dtype.removeprefix("torch.")), device="meta")
        for place, dtype, size, stride, *_ in rows
    }
    leaves = count()
    state = _map_leaves(state, lambda leaf: tensors.get(next(leaves), leaf))
    return _StateSpec(state, [*tensors.values()], [row[-2] for row in rows], [row[-1] for row in rows])


def _on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor without content of the same dtype and shape, and with the same strides if these have no gaps."""
    return torch.empty_like(tensor.detach(), device="meta")
