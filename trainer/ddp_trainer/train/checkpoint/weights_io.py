"""Weights on their way in and out: from a plain user checkpoint into a run, and from a run's checkpoint to inference.

Plain means what ``torch.save`` makes of ``model.state_dict()``, or of a mapping that has it under one of the usual
names, and safetensors, in one file or in several. Prefixes that wrappers leave in the names (``module.`` of DDP,
``_orig_mod.`` of torch.compile) are taken off. Nothing but tensors and plain values is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.train.checkpoint import safetensors_files
from ddp_trainer.train.checkpoint.safetensors_files import SAFETENSORS, is_safetensors
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.utils.durable_files import write_durably
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState

_WEIGHTS: Final = ("model", "state_dict", "model_state_dict")
_OPTIMIZER: Final = ("optimizer", "optimizer_state_dict")
_PREFIXES: Final = ("module.", "_orig_mod.")
_NAMED: Final = 3
"""Of many names, how many a sentence tells."""


@dataclass(frozen=True, slots=True)
class PlainCheckpoint:
    """What a user's own file holds."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


def read_plain(file: Path) -> PlainCheckpoint:
    """A file as people save it.

    Raises:
        BadConfig: it cannot be read, or holds no weights.
    """
    content = safetensors_files.read(file) if is_safetensors(file) else _read_pickled(file)
    if isinstance(content, Mapping):
        for name in _WEIGHTS:
            if isinstance(content.get(name), Mapping):
                optimizer = next((content[key] for key in _OPTIMIZER if isinstance(content.get(key), dict)), None)
                return PlainCheckpoint(_unwrapped(content[name]), optimizer)
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return PlainCheckpoint(_unwrapped(content), None)
    raise BadConfig(
        f"--init-from is {file}, which holds no weights.",
        hint=f"Save model.state_dict(), or a dict that has it under {', '.join(map(repr, _WEIGHTS))}.",
    )


def initialize(
    model: nn.Module,
    optimization: OptimizerWrapper,
    file: Path,
    spread: ShardedState | None = None,
    *,
    with_optimizer: bool,
) -> None:
    """Begin a run with the weights of a user's own file, and with the state of its optimizer where asked.

    ``spread`` is that of a model that no rank holds whole.

    Raises:
        BadConfig: the file does not hold what is asked, or is of another model.
    """
    plain = read_plain(file)
    demand_fit(model, plain.weights, file)
    if spread is None:
        model.load_state_dict(plain.weights)
    else:
        spread.load_weights(model, plain.weights)
    if not with_optimizer:
        return
    if plain.optimizer is None:
        raise BadConfig(f"--init-from is {file}, which holds no optimizer.", hint="Leave --init-optimizer out.")
    try:
        optimizer, state = optimization.optimizer, plain.optimizer
        _adopt(optimizer, state if spread is None else spread.optimizer_state(optimizer, state))
    except (KeyError, TypeError, ValueError) as err:
        raise BadConfig(
            f"--init-from is {file}, whose optimizer is another: {err}.", hint="Leave --init-optimizer out."
        ) from None


def demand_fit(model: nn.Module, weights: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of a file that are another model's.

    Raises:
        BadConfig: a name or a shape differs.
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
    """Write weights as ``torch.load``, or for a name ``*.safetensors`` as that library, reads them.

    Raises:
        BadConfig: safetensors is not installed.
        OSError: the file could not be written.
    """
    # Apart and contiguous: views of one tensor would be written with all of it, and safetensors refuses them.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == SAFETENSORS:
        write_durably(file, _safetensors().save(plain, metadata={"format": "pt"}))
        return
    with file.open("wb") as stream:  # torch's own opening fails with an enforcement in C++, not with an OSError
        torch.save(plain, stream)


def _adopt(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """The state of every weight; learning rates and the like stay those of this run's flags."""
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


def _unwrapped(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        short = name
        while prefix := next((each for each in _PREFIXES if short.startswith(each)), None):
            short = short.removeprefix(prefix)
        plain[short] = tensor
    return plain
