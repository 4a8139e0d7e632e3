"""Lint rules for names of variables that NCCL and torch do not read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.lint import names, sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity
from ddp_trainer.common.lint.values import split_list

_CLOSE: Final = 0.85


@Rule(
    id="N01",
    looks_for="`NCCL_*` names that NCCL does not know",
    message="NCCL ignores {name}, which it does not know.",
    fix="{detail}",
    source="https://github.com/NVIDIA/nccl (the names that src/ looks up, 2.30.7)",
)
def _unknown_to_nccl(environment: Environment, _: Facts) -> Iterator[Found]:
    explained = names.NCCL | names.NCCL_GONE.keys() | names.NCCL_NOW_TORCHS.keys()
    for name in environment:
        if name.startswith("NCCL_") and name not in explained and not name.startswith(names.NCCL_OTHERS):
            near = difflib.get_close_matches(name, sorted(names.NCCL), n=1, cutoff=_CLOSE)
            yield Found(name, detail=f"Did you mean {near[0]}?" if near else "Delete it.")


@Rule(
    id="N02",
    looks_for="names that NCCL has removed or renamed",
    message="{name} is {value}.",
    fix="{detail}",
    source=sources.ENV,
)
def _gone_from_nccl(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in environment.keys() & names.NCCL_GONE.keys():
        what, _semicolon, then = names.NCCL_GONE[name].partition("; ")
        yield Found(name, what, f"{then[:1].upper()}{then[1:]}.")


@Rule(
    id="T03",
    looks_for="torch's variables under their old names, `NCCL_ASYNC_ERROR_HANDLING` and others",
    message="{name} is the old name of torch's {detail}.",
    fix="Rename it to {detail}={value}.",
    source=sources.TORCH_NCCL,
)
def _deprecated_nccl_name(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in environment.keys() & names.NCCL_NOW_TORCHS.keys():
        yield Found(name, environment[name], names.NCCL_NOW_TORCHS[name])


@Rule(
    id="T10",
    severity=Severity.INFO,
    looks_for="`PYTORCH_CUDA_ALLOC_CONF` without `PYTORCH_ALLOC_CONF`",
    message="{name} is deprecated since torch 2.9.",
    fix="Rename it to PYTORCH_ALLOC_CONF.",
    source=sources.TORCH_CUDA,
)
def _old_allocator_name(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        if name in environment and "PYTORCH_ALLOC_CONF" not in environment:
            yield Found(name, environment[name])


@Rule(
    id="T17",
    looks_for="misspelt names of torch and gloo",
    message="torch does not know {name}.",
    fix="Did you mean {detail}?",
    source=sources.TORCH_NCCL,
)
def _misspelled_torch_name(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in environment:
        if name.startswith(names.TORCH_BEGINNINGS) and name not in names.TORCH:
            # Only with a suggestion: torch adds names, and a newer name is not an error.
            for near in difflib.get_close_matches(name, sorted(names.TORCH), n=1, cutoff=_CLOSE):
                yield Found(name, detail=near)


@Rule(
    id="T18",
    looks_for="unknown keys in `PYTORCH_ALLOC_CONF`",
    message="{name} has the key {value}, and torch refuses keys that it does not know.",
    fix="{detail}",
    source=sources.TORCH_CUDA,
)
def _unknown_allocator_key(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        # Commas within the brackets of roundup_power2_divisions:[256:1,512:2] do not separate keys.
        flat = re.sub(r"\[[^\]]*\]", "", environment.get(name, ""))
        for pair in split_list(flat):
            key = pair.partition(":")[0].strip()
            if key and key not in names.ALLOCATOR_KEYS:
                near = difflib.get_close_matches(key, sorted(names.ALLOCATOR_KEYS), n=1)
                yield Found(name, key, f"Did you mean {near[0]}?" if near else "Delete it.")
