"""Read and write plain weight files: user checkpoints to start a run from, and exports for inference.

:func:`initialize` loads a user's file into a model; :func:`export_weights` writes a file. A plain file is a
``torch.save`` of ``model.state_dict()``, or of a mapping that has it under one of the usual keys. Safetensors in one
file or several are plain files as well. Prefixes that wrappers add to names (``module.`` of DDP, ``_orig_mod.`` of
torch.compile) are removed. Only tensors and plain values are unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.process.atomic_files import atomic_write
from ddp_trainer.train.checkpoint import safetensors_files
from ddp_trainer.train.checkpoint.safetensors_files import SAFETENSORS, is_safetensors
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState

_WEIGHTS: Final = ("model", "state_dict", "model_state_dict")
_OPTIMIZER: Final = ("optimizer", "optimizer_state_dict")
_PREFIXES: Final = ("module.", "_orig_mod.")
_NAMED: Final = 3
"""Maximum number of names in a message."""


@dataclass(frozen=True, slots=True)
class PlainCheckpoint:
    """Content of a user's file."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


def read_plain(file: Path) -> PlainCheckpoint:
    """Read weights and, if present, the optimizer state from a user's file.

    Raises:
        BadConfig: The file cannot be read, or has no weights.
    """
    content = safetensors_files.read(file) if is_safetensors(file) else _read_pickled(file)
    if isinstance(content, Mapping):
        for name in _WEIGHTS:
            if isinstance(content.get(name), Mapping):
                optimizer = next((content[key] for key in _OPTIMIZER if isinstance(content.get(key), dict)), None)
                return PlainCheckpoint(_strip_prefix(content[name]), optimizer)
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return PlainCheckpoint(_strip_prefix(content), None)
    raise BadConfig(
        f"--init-from is {file}, which holds no weights.",
        hint=f"Save model.state_dict(), or a dict that has it under {', '.join(map(repr, _WEIGHTS))}.",
    )


def initialize(
    model: nn.Module, optimization: OptimizerWrapper, file: Path, sharded: ShardedState | None, *, with_optimizer: bool
) -> None:
    """Load the weights of a user's file into the model and, on request, its optimizer state.

    Args:
        model: Changed in place.
        optimization: Optimizer of the run.
        file: The user's file.
        sharded: Sharding of the model, if no rank holds all of it.
        with_optimizer: Load the optimizer state too.

    Raises:
        BadConfig: The file lacks what is required, or belongs to another model.
    """
    plain = read_plain(file)
    check_weights(model, plain.weights, file)
    if sharded is None:
        model.load_state_dict(plain.weights)
    else:
        sharded.load_weights(model, plain.weights)
    if not with_optimizer:
        return
    if plain.optimizer is None:
        raise BadConfig(f"--init-from is {file}, which holds no optimizer.", hint="Leave --init-optimizer out.")
    try:
        optimizer, state = optimization.optimizer, plain.optimizer
        _load_optimizer_state(optimizer, state if sharded is None else sharded.optimizer_state(optimizer, state))
    except (KeyError, TypeError, ValueError) as err:
        raise BadConfig(
            f"--init-from is {file}, whose optimizer is another: {err}.", hint="Leave --init-optimizer out."
        ) from None


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], file: Path) -> None:
    """Check that the weights in a file belong to this model.

    Raises:
        BadConfig: A name or a shape differs.
    """
    own = model.state_dict()
    for what, names in (("lacks", own.keys() - weights.keys()), ("has too much:", weights.keys() - own.keys())):
        if names:
            rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            some = ", ".join(sorted(names)[:_NAMED]) + rest
            raise BadConfig(f"--init-from is {file}, which {what} {some}.", hint="Give weights of the same model.")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise BadConfig(
                f"--init-from is {file}, where {name} has the shape {tuple(weights[name].shape)}, "
                f"and in the model {tuple(tensor.shape)}.",
                hint="Give weights of the same model.",
            )


def export_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write weights to a file: as safetensors if its name ends in ``.safetensors``, else for ``torch.load``.

    Raises:
        BadConfig: The package safetensors is not installed.
        OSError: The file could not be written.
    """
    # Separate and contiguous: torch.save would write the whole tensor behind a view, and safetensors refuses views.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == SAFETENSORS:
        atomic_write(file, _safetensors().save(plain, metadata={"format": "pt"}))
        return
    with file.open("wb") as stream:  # if torch opens the file itself, a failure is a C++ error, not an OSError
        torch.save(plain, stream)


def _load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state of every weight, but keep the learning rate and other options of this run."""
    options = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    with uncompiled():
        optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)


def _read_pickled(file: Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as err:
        raise BadConfig(
            f"--init-from is {file}, which cannot be read: {err.strerror}.", hint="Check the name."
        ) from None
    except Exception as err:
        reason = str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
        raise BadConfig(
            f"--init-from is {file}, which cannot be loaded for safety: {reason.rstrip('.')}.",
            hint="Save tensors and plain values alone.",
        ) from err


def _safetensors() -> Any:
    try:
        import safetensors.torch  # noqa: PLC0415 - optional
    except ImportError:
        raise BadConfig(
            "Files of the name *.safetensors need the package safetensors, which is not installed.",
            hint="Install kubectl-ddp[safetensors], or use the name *.pt.",
        ) from None
    return safetensors.torch


def _strip_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        short = name
        while prefix := next((known for known in _PREFIXES if short.startswith(known)), None):
            short = short.removeprefix(prefix)
        plain[short] = tensor
    return plain
