"""What stands beside a checkpoint's payload: whose it is, where it stands, and the digest that proves it whole.

The manifest is written last, so a directory without one was never finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final

from torch import nn

from ddp_trainer.train.config import flag
from ddp_trainer.train.errors import BadTask, CheckpointMismatch

WHOLE: Final = 1
"""Format of a checkpoint whose payload is the whole state."""
IN_PIECES: Final = 2
"""Format of one that lies in several files, of which the payload is the first."""
FORMAT: Final = IN_PIECES
"""The newest that this version reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What must be equal for a run to go on from a checkpoint. The world size is not among it."""

    task: str
    model: str
    """:func:`signature` of the model."""
    data: str
    """Digest of the training samples."""
    samples: int
    seed: int
    global_batch: int
    order: str
    """Algorithm that orders the samples and seeds the random streams."""
    architecture: str = ""
    """:func:`architecture` of the model; empty where it tells none, as in manifests of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file beside the payload, with what one rank held of the state."""

    file: str
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Piece:
        """The inverse of ``asdict``.

        Raises:
            KeyError, TypeError, ValueError: it is something else, or the name leads out of the directory.
        """
        piece = cls(file=str(raw["file"]), sha256=str(raw["sha256"]), size_bytes=int(raw["size_bytes"]))
        if "/" in piece.file or piece.file.startswith("."):
            raise ValueError(f"a piece named {piece.file!r}")
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One checkpoint."""

    identity: Identity
    step: int
    """Committed global steps; the next step to take has this number."""
    epoch: int
    shards: int
    generation: int
    run_id: str
    world_size: int
    """Ranks that trained when it was written; any number may go on."""
    sha256: str
    """Digest of the payload."""
    size_bytes: int
    written_at: float
    """Seconds since the Unix epoch."""
    torch: str
    """Version of torch that wrote it."""
    format: int = WHOLE
    metrics: Mapping[str, float] | None = None
    """Of the evaluation after this step; None where there was none."""
    pieces: tuple[Piece, ...] = ()
    """Files beside the payload; none where that is the whole state."""

    @property
    def total_bytes(self) -> int:
        """Of all files but this one."""
        return self.size_bytes + sum(piece.size_bytes for piece in self.pieces)

    def to_json(self) -> str:
        """For people to read, too."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The inverse of :meth:`to_json`; fields of later versions are ignored.

        Raises:
            ValueError: the text is not a whole manifest.
        """
        raw = json.loads(text)
        try:
            if raw.get("format", WHOLE) > FORMAT:
                return cls.later(raw)
            own = _known(cls, raw)
            own["identity"] = Identity(**_known(Identity, raw["identity"]))
            own["pieces"] = tuple(map(Piece.of, raw.get("pieces", ())))
        except (AttributeError, KeyError, TypeError) as err:
            raise ValueError(f"a manifest without {err}") from None
        return cls(**own)

    @classmethod
    def later(cls, raw: dict[str, Any]) -> Manifest:
        """What can be said of a manifest whose format is not known yet: its format and, most likely, its step."""
        unknown = Identity(task="", model="", data="", samples=0, seed=0, global_batch=0, order="")
        return cls(
            identity=unknown,
            step=int(raw.get("step", 0)),
            epoch=0,
            shards=0,
            generation=0,
            run_id="",
            world_size=0,
            sha256="",
            size_bytes=0,
            written_at=float(raw.get("written_at", 0.0)),
            torch=str(raw.get("torch", "")),
            format=int(raw["format"]),
        )


def _known(kind: type[Manifest | Identity], raw: Mapping[str, Any]) -> dict[str, Any]:
    """What ``kind`` has fields for. Raises ``KeyError`` where one is missing that must be there."""
    return {each.name: raw[each.name] for each in fields(kind) if each.default is MISSING or each.name in raw}


def signature(model: nn.Module) -> str:
    """Number of weights, and a digest of the names, types and shapes of a model's state.

    >>> signature(nn.Linear(2, 3))
    '9 weights, 17d7fc4b'
    """
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    weights = sum(weight.numel() for weight in model.parameters())
    return f"{weights} weights, {sha.hexdigest()[:8]}"


def architecture(model: nn.Module) -> str:
    """What the model says of itself that the shapes of its weights do not: its mapping ``architecture``, if it has one.

    >>> model = nn.Linear(2, 3)
    >>> model.architecture = {"norm": "pre", "heads": 4}
    >>> architecture(model), architecture(nn.Linear(2, 3))
    ('heads=4, norm="pre"', '')

    Raises:
        BadTask: a value of it is of no kind that JSON has, so that it cannot be compared in another process.
    """
    said = getattr(model, "architecture", None)
    if not isinstance(said, Mapping):
        return ""
    try:
        return ", ".join(sorted(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in said.items()))
    except (TypeError, ValueError) as err:
        raise BadTask(
            f"The architecture of the model, a {type(model).__name__}, cannot be written into a checkpoint: {err}.",
            hint="Let its values be numbers, words, and lists and mappings of them.",
        ) from None


def demand_same(manifest: Manifest, own: Identity, *, where: str, shards: int | None) -> None:
    """Refuse the checkpoint of another run.

    Raises:
        CheckpointMismatch: it differs in something that decides what is computed; named with both values.
    """
    if manifest.format > FORMAT:
        raise CheckpointMismatch(
            f"The checkpoint {where} has format {manifest.format}, and this version reads format {FORMAT}.",
            hint="Go on with the version that wrote it, or give another --checkpoint-dir.",
        )
    pairs = [(name, getattr(manifest.identity, name), getattr(own, name)) for name in _COMPARED]
    if manifest.identity.architecture and own.architecture:
        pairs.append(("architecture", manifest.identity.architecture, own.architecture))
    if shards is not None:
        pairs.append(("shards", manifest.shards, shards))
    different = [(name, theirs, ours) for name, theirs, ours in pairs if theirs != ours]
    if different:
        name, theirs, ours = different[0]
        raise CheckpointMismatch(
            f"The checkpoint {where} was written with {_COMPARED.get(name, name)} {theirs}, and this run has {ours}.",
            hint=f"{_way_back(name, theirs)} to go on from it, or give another --checkpoint-dir to start anew.",
        )


def _way_back(name: str, value: object) -> str:
    if name in {"seed", "global_batch", "shards"}:
        return f"Give {flag(name)} {value}"
    return f"Bring back that {_COMPARED.get(name, name)}"


_COMPARED: Final = {
    "task": "task",
    "data": "data digest",
    "samples": "number of samples",
    "model": "model",
    "seed": "seed",
    "global_batch": "global batch",
    "order": "order algorithm",
}
"""Field → its name in a sentence; in the order in which a difference explains those after it."""
