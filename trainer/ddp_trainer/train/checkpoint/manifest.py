"""Manifest of a checkpoint: identity of the run, step, and digests of all files.

The writer writes the manifest last, so a directory without one is unfinished. The manifest has a digest of itself,
which separates damage from a checkpoint of another run. :func:`check_same_run` refuses the checkpoint of another run.

How to add a field that is read without the state, for example by ``inspect``; state of a resumed run is a field of
``train/loop/train_state.py`` instead, which changes no format:

1. Add it to :class:`Manifest`, with the default that manifests of earlier formats get. ``to_json`` and ``from_json``
   follow. Raise ``UNSHARDED`` and ``SHARDED`` to two new numbers, since earlier versions refuse unknown keys, and keep
   the earlier number in ``SHARDED_FORMATS``. ``format``, ``step`` and ``written_at`` never change name or type, since
   earlier versions read them.
2. Set the value in ``TrainState.manifest`` (``train/loop/train_state.py``). A value that must be equal to resume is a
   field of :class:`Identity` instead, which ``train/loop/run_context.py`` fills in, with its words in ``_COMPARED``.
3. ``inspect`` shows it from ``Entry.to_dict`` in ``checkpoint_cli.py``. Update ``docs/checkpoints.md``.
4. Test that a manifest of the earlier format is read, in ``test_manifest.py``, with ``a_manifest`` and ``sealed`` of
   ``tests/support/train_builders.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Final

from torch import nn

from ddp_trainer.common import strict_json
from ddp_trainer.common.strict_json import Bounds, Matching
from ddp_trainer.train.config.options import flag
from ddp_trainer.train.data.sample_order import ORDERS
from ddp_trainer.train.utils.errors import BadTask, CheckpointMismatch

PAYLOAD: Final = "state.pt"
MANIFEST: Final = "manifest.json"
UNSHARDED: Final = 1
"""Format of a checkpoint whose payload is the complete state."""
SHARDED: Final = 2
"""Format of a sharded checkpoint: the payload, and the files of the key ``pieces``."""
SHARDED_FORMATS: Final = frozenset({SHARDED})
"""All formats of sharded checkpoints that this version reads."""
FORMAT: Final = SHARDED
"""Newest format that this version reads. It rises with every new key, because earlier versions refuse unknown keys."""
_OWN_DIGEST: Final = "manifest_sha256"
"""Key of the digest over the other keys; it keeps its meaning in every later format."""
_Count = Annotated[int, Bounds(0, strict_json.MOST_INTEGER)]
_Time = Annotated[float, Bounds(0, 1e11)]
"""Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Properties that must match for a run to resume from a checkpoint; the world size is not one of them."""

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
    """:func:`architecture` of the model; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """File beside the payload with one rank's part of the state."""

    file: Annotated[str, Matching("[A-Za-z0-9_-][A-Za-z0-9_.-]*")]
    """Name in the directory of the checkpoint; it never leads out of it."""
    sha256: str
    size_bytes: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    """Fields that are read of a manifest in a later format. They keep name and type in every format."""

    format: _Count
    step: _Count
    written_at: _Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of one checkpoint."""

    identity: Identity
    step: _Count
    """Number of committed global steps; the next step has this number."""
    epoch: _Count
    batch_slices: _Count
    generation: _Count
    run_id: str
    world_size: _Count
    """Number of ranks that wrote the checkpoint; any number of ranks may resume from it."""
    sha256: str
    """SHA-256 digest of the payload."""
    size_bytes: _Count
    written_at: _Time
    """Time of writing, in seconds since the Unix epoch."""
    torch: str
    """Version of torch that wrote the checkpoint."""
    format: _Count = UNSHARDED
    metrics: Mapping[str, float] | None = None
    """Metrics of the evaluation after this step; None without one."""
    pieces: tuple[CheckpointFile, ...] = ()
    """Files beside the payload of a sharded checkpoint; empty if the payload is the complete state."""

    @property
    def files(self) -> tuple[CheckpointFile, ...]:
        """All files of the checkpoint except the manifest, the payload first."""
        return CheckpointFile(file=PAYLOAD, sha256=self.sha256, size_bytes=self.size_bytes), *self.pieces

    @property
    def total_bytes(self) -> int:
        """Size of all files except the manifest, in bytes."""
        return self.size_bytes + sum(piece.size_bytes for piece in self.pieces)

    def to_json(self) -> str:
        """Return the manifest as indented JSON with its own digest."""
        content = asdict(self)
        return json.dumps({**content, _OWN_DIGEST: _digest(content)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest in a JSON text (the inverse of :meth:`to_json`).

        Of a manifest in a later format, only the format, the step and the time are valid.

        Raises:
            ValueError: The text is not a valid manifest.
        """
        try:
            raw = json.loads(text)
            if raw.pop(_OWN_DIGEST) != _digest(raw):
                raise ValueError("it differs from its own digest")
            if raw["format"] > FORMAT:
                known = {member.name: raw.get(member.name, 0) for member in fields(_Later)}
                later: _Later = strict_json.parse(_Later, known)
                return cls(**dict.fromkeys((member.name for member in fields(cls)), 0) | asdict(later))
            metrics = raw.pop("metrics")  # they may be infinite or NaN, which strict JSON lacks
            if metrics is not None and not all(type(value) in {int, float} for value in metrics.values()):
                raise ValueError("a metric is not a number")
            manifest: Manifest = strict_json.parse(cls, raw)
        except strict_json.DecodeError as error:
            raise ValueError(str(error)) from None
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"a manifest without {error}") from None
        except (OverflowError, RecursionError) as error:
            raise ValueError(f"no manifest: {error}") from None
        return replace(manifest, metrics=metrics)


def _digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of the content, independent of key order and whitespace."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def signature(model: nn.Module) -> str:
    """Return the number of weights and a digest of the names, dtypes and shapes of a model's state.

    >>> signature(nn.Linear(2, 3))
    '9 weights, 17d7fc4b'
    """
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    weights = sum(weight.numel() for weight in model.parameters())
    return f"{weights} weights, {sha.hexdigest()[:8]}"


def architecture(model: nn.Module) -> str:
    """Return the model's ``architecture`` mapping as text; empty if it has none.

    It covers properties that the shapes of the weights do not determine.

    >>> model = nn.Linear(2, 3)
    >>> model.architecture = {"norm": "pre", "heads": 4}
    >>> architecture(model), architecture(nn.Linear(2, 3))
    ('heads=4, norm="pre"', '')

    Raises:
        BadTask: A value has no JSON form, so another process could not compare it.
    """
    described = getattr(model, "architecture", None)
    if not isinstance(described, Mapping):
        return ""
    try:
        return ", ".join(sorted(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in described.items()))
    except (TypeError, ValueError) as err:
        raise BadTask(
            f"The architecture of the model, a {type(model).__name__}, cannot be written into a checkpoint: {err}.",
            hint="Let its values be numbers, words, and lists and mappings of them.",
        ) from None


def check_same_run(manifest: Manifest, own: Identity, *, where: str, batch_slices: int | None) -> None:
    """Check that a checkpoint belongs to this run.

    Args:
        manifest: Manifest of the checkpoint.
        own: Identity of this run.
        where: Location of the checkpoint, for the message.
        batch_slices: Number of batch slices of this run; None to skip their comparison.

    Raises:
        CheckpointMismatch: A property that decides what is computed differs; the message has both values.
    """
    if manifest.format > FORMAT:
        raise CheckpointMismatch(
            f"The checkpoint {where} has format {manifest.format}, and this version reads format {FORMAT}.",
            hint="Continue with the version that wrote it, or give another --checkpoint-dir.",
        )
    pairs = [(name, getattr(manifest.identity, name), getattr(own, name)) for name in _COMPARED]
    if manifest.identity.order in ORDERS:  # the run continues in the order of the checkpoint
        pairs.remove(("order", manifest.identity.order, own.order))
    if batch_slices is not None:
        pairs.append(("batch_slices", manifest.batch_slices, batch_slices))
    different = [(name, stored, present) for name, stored, present in pairs if stored != present]
    if different:
        name, stored, present = different[0]
        what = _COMPARED.get(name, "number of batch slices")
        is_option = name in {"seed", "global_batch", "batch_slices"}
        fix = f"Give {flag(name)} {stored}" if is_option else f"Bring back that {what}"
        raise CheckpointMismatch(
            f"The checkpoint {where} was written with {what} {stored}, and this run has {present}.",
            hint=f"{fix} to continue from it, or use another --checkpoint-dir.",
        )


_COMPARED: Final = {
    "task": "task",
    "data": "data digest",
    "samples": "number of samples",
    "model": "model",
    "seed": "seed",
    "global_batch": "global batch",
    "order": "order algorithm",
    "architecture": "architecture",
}
"""Field → its name in a message. A difference in an earlier field explains those in later ones."""
