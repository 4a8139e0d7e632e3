"""Find the blocks of a model: the modules that activation checkpointing, FSDP and the compiler treat as a unit.

By default (:func:`blocks`) they are the entries of every ``nn.ModuleList``, the layers of a transformer. In a model
without one, they are the entries of its outermost ``nn.Sequential`` that have weights. ``--fsdp-blocks`` names their
classes instead (:func:`named_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torch import nn

from ddp_trainer.train.utils.errors import BadConfig

_CONTAINERS: Final = (nn.ModuleList, nn.ModuleDict)
_NAMED: Final = 12
"""Maximum number of classes in a message."""


def require_blocks(model: nn.Module, flag: str) -> list[nn.Module]:
    """Return the blocks of a model for a flag that requires them.

    Raises:
        BadConfig: The model has no blocks.
    """
    if found := blocks(model):
        return found
    raise BadConfig(
        f"{flag} finds no blocks in {type(model).__name__}, which has neither an nn.ModuleList nor an nn.Sequential.",
        hint="Put the layers into one, or leave the flag out.",
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model; no block is inside another. Empty if there are none."""
    for kind in (nn.ModuleList, nn.Sequential):
        outermost = [module for name, module in model.named_modules() if isinstance(module, kind)]
        entries = [entry for module in outermost for entry in module if any(True for _ in entry.parameters())]
        inner = {id(module) for entry in entries for module in entry.modules() if module is not entry}
        if entries:
            return [entry for entry in entries if id(entry) not in inner]
    return []


def named_blocks(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules of these classes inside the model, in model order, an inner module before its outer one.

    Raises:
        BadConfig: No module with weights is of one of the classes.
    """
    every = dict.fromkeys(_inner_first(model))
    inside = [module for module in every if module is not model and not isinstance(module, _CONTAINERS)]
    there = {type(module).__name__ for module in inside if any(True for _ in module.parameters())}
    for name in names:
        if name not in there:
            known = sorted(there)
            rest = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
            raise BadConfig(
                f"--fsdp-blocks names {name!r}, and {type(model).__name__} has no such module with weights.",
                hint=f"It has {', '.join(known[:_NAMED])}{rest}.",
            )
    return [module for module in inside if type(module).__name__ in names]


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _inner_first(child)
    yield module
