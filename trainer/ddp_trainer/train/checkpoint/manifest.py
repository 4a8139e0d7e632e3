"""What stands beside a checkpoint's payload: whose it is, where it stands, and the digest that proves it whole.

The manifest is written last, so a directory without one was never finished. It carries a digest of itself, so that
damage to it is told from a checkpoint of another run. Manifests without one, of version 0.1.0, are accepted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Final

from torch import nn

from ddp_trainer.net import strict_json
from ddp_trainer.train.config.config import flag
from ddp_trainer.train.utils.errors import BadTask, CheckpointMismatch

PAYLOAD: Final = "state.pt"
MANIFEST: Final = "manifest.json"
WHOLE: Final = 1
"""Format of a checkpoint whose payload is the whole state."""
IN_PIECES: Final = 2
"""Format of one that lies in several files, of which the payload is the first."""
FORMAT: Final = IN_PIECES
"""The newest that this version reads."""
_OWN_DIGEST: Final = "manifest_sha256"
"""Key of the digest of the other keys; it means the same in every later format."""
_PIECE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_LARGEST: Final = 2**63 - 1
"""Numbers travel between ranks as signed integers of 64 bits."""
_LATEST: Final = 1e11
"""Unix time after which no checkpoint was written."""


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

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the directory. Raises ValueError."""
        if not _PIECE_NAME.fullmatch(self.file):
            raise ValueError(f"a piece named {self.file!r}")

    @classmethod
    def of(cls, raw: object) -> Piece:
        """Return the inverse of ``asdict``.

        Raises:
            ValueError: It is something else, or the name leads out of the directory.
        """
        try:
            piece: Piece = strict_json.parse(cls, raw)
        except strict_json.Malformed as error:
            raise ValueError(str(error)) from None
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
    def files(self) -> tuple[Piece, ...]:
        """All files of the checkpoint but the manifest itself, the payload first."""
        return Piece(file=PAYLOAD, sha256=self.sha256, size_bytes=self.size_bytes), *self.pieces

    @property
    def total_bytes(self) -> int:
        """Of all files but this one."""
        return self.size_bytes + sum(piece.size_bytes for piece in self.pieces)

    def to_json(self) -> str:
        """For people to read, too."""
        content = asdict(self)
        return json.dumps({**content, _OWN_DIGEST: _digest(content)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the inverse of :meth:`to_json`; fields of later versions are ignored.

        Raises:
            ValueError: The text is not a whole manifest.
        """
        try:
            raw = json.loads(text)
            if _OWN_DIGEST in raw and raw.pop(_OWN_DIGEST) != _digest(raw):
                raise ValueError("it differs from its own digest")
            manifest = cls.later(raw) if raw.get("format", WHOLE) > FORMAT else cls._of(raw)
        except strict_json.Malformed as error:
            raise ValueError(str(error)) from None
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"a manifest without {error}") from None
        except (OverflowError, RecursionError) as error:
            raise ValueError(f"no manifest: {error}") from None
        manifest.demand_range()
        return manifest

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> Manifest:
        own = _known(cls, raw)
        own["identity"] = _known(Identity, raw["identity"])
        own["pieces"] = [_known(Piece, piece) for piece in raw.get("pieces", ())]
        metrics = own.pop("metrics", None)  # they may be infinite or NaN, which exact JSON has not
        manifest: Manifest = strict_json.parse(cls, own)
        return manifest if metrics is None else replace(manifest, metrics=_numbers(metrics))

    def demand_range(self) -> None:
        """Refuse numbers that no checkpoint has. Raises ValueError."""
        own = (self.step, self.epoch, self.shards, self.generation, self.world_size, self.size_bytes, self.format)
        if not all(0 <= number <= _LARGEST for number in (*own, *(piece.size_bytes for piece in self.pieces))):
            raise ValueError("a number is out of range")
        if not 0 <= self.written_at < _LATEST:
            raise ValueError(f"written_at is {self.written_at}")

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


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content, whatever the order of its keys and the spaces between them."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    if not all(type(value) in {int, float} for value in metrics.values()):
        raise ValueError("a metric is not a number")
    return {name: float(value) for name, value in metrics.items()}


def _known(kind: type[Manifest | Identity | Piece], raw: Mapping[str, Any]) -> dict[str, Any]:
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
