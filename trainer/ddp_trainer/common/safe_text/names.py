"""Rules that decide by name whether a variable, flag, header, key or field holds a secret.

:func:`is_secret_name` and :func:`is_safe_variable` are the entry points.
"""

from __future__ import annotations

import functools
import re
from typing import Final

HIDDEN: Final = "(redacted)"
"""Text that replaces a secret."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET: Final = _word_set(
    "password passwd passphrase passcode pwd secret secrets credential credentials apikey accesskey secretkey "
    "privatekey accountkey authorization cookie cookies"
)
"""Words that make a name secret at any position."""

_SECRET_AT_THE_END: Final = frozenset(["auth", "pass", "dsn", "token", "pgpass", "sas"])

_KEY_OF: Final = _word_set(
    "access account admin aes anthropic api app application auth aws azure client cohere comet consumer crypto "
    "customer datadog dd deploy encryption fernet gcp gemini github gitlab google hf hmac host huggingface jwt "
    "license licence master mistral mlflow neptune openai private root rsa secret sentry service session shared "
    "signing slack ssh ssl storage stripe subscription tls user wandb webhook x"
)
"""Words that make a ``key`` after them a secret. Other keys are keys of a table."""

_NO_SECRET_KEY: Final = _word_set(
    "cache column config dict foreign group hash index lookup metric monitor partition primary public row sort"
)

_NOT_ITSELF: Final = _word_set(
    "arn class count dir directory enabled env error errors exception file files keyring length limit mode name names "
    "path policy provider ref required size type url uri version volume warning"
)
"""Last words of names that describe a secret and do not hold one."""

_OF_LANGUAGE: Final = _word_set(
    "acc accuracy audio avg bos budget cls completion count embedding embeddings end eos first generated id ids idx "
    "image index input last len length limit loss mask max mean min new next num output pad per prompt rate sep size "
    "special start stop temperature text throughput time total type unk video vision vocab"
)
"""Words that mark ``token`` as a token of a language model, not of an account."""

_MOVES: Final = _word_set("backward by first forward last multi one second single two")
"""Words that mark ``pass`` as a pass over data."""

_HARMLESS_VARIABLE: Final = (
    r"(?:NCCL|TORCH|TORCHELASTIC|TORCHINDUCTOR|PYTORCH|GLOO|UCX|UCC|FI|OMPI|OMP|MKL|KMP|CUDA|CUDNN|CUBLAS|NVIDIA|NVSHMEM"
    r"|HSA|HIP|ROCR|MIOPEN|RCCL|DDP|PET|LOCAL|GROUP|ROLE|JOB_COMPLETION|TRITON|TF_CPP|GRPC|KUBERNETES|LC|XDG)_\w*"
    r"|PYTHON\w*|RANK|WORLD_SIZE|NODE_RANK|NNODES|NPROC_PER_NODE|MASTER_(?:ADDR|PORT)|HOSTNAME|HOME|PATH|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|LANG|LANGUAGE|TZ|TMPDIR|TMP|TEMP|USER|SHELL|TERM|PWD|EPOCHS?|STEPS?|MAX_STEPS|BATCH(?:_SIZE)?|LR|SEED"
    r"|TOKENIZERS_PARALLELISM|(?:NUM|MAX|MIN)_TOKENS?|HF_HOME|HF_DATASETS_CACHE|HF_HUB_(?:OFFLINE|CACHE)"
    r"|TRANSFORMERS_\w*CACHE|WANDB_(?:MODE|PROJECT|DIR)|MLFLOW_EXPERIMENT_NAME|MALLOC_\w*|SSH_AUTH_SOCK"
    r"|(?:HTTPS?|NO|ALL)_PROXY|(?:https?|no|all)_proxy"
)


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, flag, header or field of this name is a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "--db-pass", "AccountKey", "max_tokens", "sort_key")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _NOT_ITSELF:
        return False
    if not _SECRET.isdisjoint(words) or words[-1].endswith("password"):
        return name not in {"PWD", "OLDPWD"} and not ("pwd" in words and words[-1] == "old")
    if "token" in words:
        return _OF_LANGUAGE.isdisjoint(words)
    if words[-1] in _SECRET_AT_THE_END:
        return _MOVES.isdisjoint(words)
    return "key" in words[-2:] and _is_secret_key(name, words)


def _is_secret_key(name: str, words: list[str]) -> bool:
    if not _NO_SECRET_KEY.isdisjoint(words):
        return False
    return not _KEY_OF.isdisjoint(words) or (name.isupper() and name.endswith("_KEY"))


def is_safe_variable(name: str) -> bool:
    """Return whether an environment variable is known to hold no secret. The value of any other variable is hidden.

    >>> is_safe_variable("NCCL_DEBUG"), is_safe_variable("COMPANY_SETTING")
    (True, False)
    """
    return re.fullmatch(_HARMLESS_VARIABLE, name) is not None and not is_secret_name(name)
