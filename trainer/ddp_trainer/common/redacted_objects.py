"""Redaction of secrets in JSON values: objects of Kubernetes, job specifications, and reports of pods."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.safe_text import HIDDEN, is_secret_name, redact_text

_HARMLESS_VARIABLE: Final = (
    r"(?:NCCL|TORCH|TORCHELASTIC|TORCHINDUCTOR|PYTORCH|GLOO|UCX|UCC|FI|OMPI|OMP|MKL|KMP|CUDA|CUDNN|CUBLAS|NVIDIA|NVSHMEM"
    r"|HSA|HIP|ROCR|MIOPEN|RCCL|DDP|PET|LOCAL|GROUP|ROLE|JOB_COMPLETION|TRITON|TF_CPP|GRPC|KUBERNETES|LC|XDG)_\w*"
    r"|PYTHON\w*|RANK|WORLD_SIZE|NODE_RANK|NNODES|NPROC_PER_NODE|MASTER_(?:ADDR|PORT)|HOSTNAME|HOME|PATH|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|LANG|LANGUAGE|TZ|TMPDIR|TMP|TEMP|USER|SHELL|TERM|PWD|EPOCHS?|STEPS?|MAX_STEPS|BATCH(?:_SIZE)?|LR|SEED"
    r"|TOKENIZERS_PARALLELISM|(?:NUM|MAX|MIN)_TOKENS?|HF_HOME|HF_DATASETS_CACHE|HF_HUB_(?:OFFLINE|CACHE)"
    r"|TRANSFORMERS_\w*CACHE|WANDB_(?:MODE|PROJECT|DIR)|MLFLOW_EXPERIMENT_NAME|MALLOC_\w*|SSH_AUTH_SOCK"
    r"|(?:HTTPS?|NO|ALL)_PROXY|(?:https?|no|all)_proxy"
)

_LEFT_OUT: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_REFERENCES: Final = frozenset({"secret", "secretRef", "secretKeyRef", "secretName"})
"""Keys that name a Secret and do not hold its data."""
_ENVIRONMENTS: Final = frozenset({"env", "environment", "environ", "envVars"})
_ENCODED: Final = frozenset({".dockerconfigjson", ".dockercfg", "client-key-data", "identitytoken", "registrytoken"})


def redact_object(item: Any) -> Any:
    """Return a copy of a JSON value without secrets.

    Data of a Secret is left out. An environment variable keeps its value only if its name is known to be harmless.
    After a flag whose name is secret, the next item is hidden.
    """
    if isinstance(item, str):
        return _redact_string(item)
    if isinstance(item, list | tuple):
        return list(_redact_items(item))
    if not isinstance(item, dict):
        return item
    if item.get("kind") == "Secret":
        return {key: redact_object(item[key]) for key in item if key not in {"data", "stringData", "managedFields"}}
    if isinstance(item.get("name"), str) and isinstance(item.get("value"), str) and is_secret_name(item["name"]):
        return {**item, "value": HIDDEN}
    return {key: _redact_entry(key, value) for key, value in item.items() if key not in _LEFT_OUT}


def _redact_string(text: str) -> str:
    """Redact a text. A text that is a JSON object, as in annotations, is redacted as an object."""
    if text.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(redact_object(json.loads(text)))
    return redact_text(text)


def _redact_items(items: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    is_value = False
    for item in items:
        if is_value and isinstance(item, str) and not item.startswith("-"):
            yield HIDDEN
        else:
            yield redact_object(item)
        is_value = isinstance(item, str) and item.startswith("-") and "=" not in item and is_secret_name(item)


def _redact_entry(key: Any, value: Any) -> Any:
    if key in _ENVIRONMENTS:
        return _redact_environment(value)
    if isinstance(value, str) and key not in _REFERENCES and (key in _ENCODED or is_secret_name(str(key))):
        return HIDDEN if value else value
    return redact_object(value)


def _redact_environment(variables: Any) -> Any:
    if isinstance(variables, Mapping):
        return {name: _variable(str(name), value) for name, value in variables.items()}
    if isinstance(variables, list):
        return [_redact_variable(variable) for variable in variables]
    return redact_object(variables)


def _redact_variable(variable: Any) -> Any:
    if isinstance(variable, dict) and isinstance(variable.get("value"), str):
        return {**variable, "value": _variable(str(variable.get("name", "")), variable["value"])}
    if isinstance(variable, str) and "=" in variable:
        name, _, value = variable.partition("=")
        return f"{name}={_variable(name, value)}"
    return redact_object(variable)


def _variable(name: str, value: Any) -> Any:
    if value is None or value == "" or is_safe_variable(name):
        return redact_object(value)
    return HIDDEN


def is_safe_variable(name: str) -> bool:
    """Return whether an environment variable is known to hold no secret. The value of any other variable is hidden.

    >>> is_safe_variable("NCCL_DEBUG"), is_safe_variable("COMPANY_SETTING")
    (True, False)
    """
    return re.fullmatch(_HARMLESS_VARIABLE, name) is not None and not is_secret_name(name)
