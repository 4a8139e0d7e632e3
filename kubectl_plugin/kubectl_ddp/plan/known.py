"""Known model shapes by name, and shapes derived from a number of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.util.nearest import suggest_known


@dataclass(frozen=True, slots=True)
class Known:
    """A named model."""

    shape: Shape
    source: str
    """Paper and table."""


_GPT2: Final = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019, table 2"
_GPT3: Final = "Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1"
_LLAMA: Final = "Touvron et al., LLaMA, 2023, table 2"
_LLAMA3: Final = "The Llama 3 Herd of Models, 2024, table 3"
_BYTE_PAIRS: Final = 50257
"""Vocabulary size of GPT-2 and GPT-3."""


def _gpt(layers: int, hidden: int, heads: int, window: int) -> Shape:
    return Shape(layers=layers, hidden=hidden, heads=heads, vocabulary=_BYTE_PAIRS, window=window)


def _llama(layers: int, hidden: int, heads: int, feed_forward: int, *, keys: int = 0, vocabulary: int) -> Shape:
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        window=0,
        is_gated=True,
        is_tied=False,
    )


KNOWN: Final[Mapping[str, Known]] = {
    "gpt2": Known(_gpt(12, 768, 12, 1024), _GPT2),
    "gpt2-medium": Known(_gpt(24, 1024, 16, 1024), _GPT2),
    "gpt2-large": Known(_gpt(36, 1280, 20, 1024), _GPT2),
    "gpt2-xl": Known(_gpt(48, 1600, 25, 1024), _GPT2),
    "gpt3-6.7b": Known(_gpt(32, 4096, 32, 2048), _GPT3),
    "gpt3-175b": Known(_gpt(96, 12288, 96, 2048), _GPT3),
    "llama-7b": Known(_llama(32, 4096, 32, 11008, vocabulary=32000), _LLAMA),
    "llama-13b": Known(_llama(40, 5120, 40, 13824, vocabulary=32000), _LLAMA),
    "llama-65b": Known(_llama(80, 8192, 64, 22016, vocabulary=32000), _LLAMA),
    "llama3-8b": Known(_llama(32, 4096, 32, 14336, keys=8, vocabulary=128256), _LLAMA3),
    "llama3-70b": Known(_llama(80, 8192, 64, 28672, keys=8, vocabulary=128256), _LLAMA3),
    "llama3-405b": Known(_llama(126, 16384, 128, 53248, keys=8, vocabulary=128256), _LLAMA3),
}
"""Shapes by name. Biases, which some models have, are left out: less than 0.1 % of the weights."""

_LADDER: Final = (
    (12, 768, 12),
    (24, 1024, 16),
    (24, 1536, 16),
    (24, 2048, 16),
    (32, 2560, 32),
    (32, 4096, 32),
    (40, 5120, 40),
    (64, 8192, 64),
    (96, 12288, 96),
    (126, 16384, 128),
)
"""Layers, width and heads of models by increasing size: GPT-3's, and two of Llama's widths between and above them."""

_SIZE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([KMBTkmbt]?)")
_UNITS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_LEAST, _MOST = 1e5, 1e14


def known(name: str) -> Shape:
    """Return the shape of a named model.

    Raises:
        UsageError: If the name is unknown.
    """
    found = KNOWN.get(name.lower())
    if found is None:
        raise UsageError(f"There is no model '{name}' whose shape is known.", hint=suggest_known(name.lower(), KNOWN))
    return found.shape


def parse_count(text: str) -> int:
    """Parse a number of parameters such as ``7B``, ``124M`` or plain digits. Raises UsageError.

    >>> parse_count("6.7B")
    6700000000
    """
    match = _SIZE.fullmatch(text.strip())
    count = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not _LEAST <= count <= _MOST:
        raise UsageError(
            f"--params is '{text}', which is not a number of parameters.", hint="Write it as '7B' or '124M'."
        )
    return round(count)


def shape_of(count: int, *, vocabulary: int = _BYTE_PAIRS, window: int = 2048) -> Shape:
    """Return a GPT with about ``count`` parameters: among common widths, the one with the most typical depth.

    >>> shape = shape_of(6_700_000_000)
    >>> shape.layers, shape.hidden, shape.heads
    (32, 4096, 32)
    """
    fitting = []
    for layers, hidden, heads in _LADDER:
        ends = (vocabulary + window) * hidden
        deep = max(1, round((count - ends) / (12 * hidden * hidden)))
        unusual = abs(math.log(deep / layers))
        shape = Shape(layers=deep, hidden=hidden, heads=heads, vocabulary=vocabulary, window=window)
        fitting.append((abs(math.log(shape.parameters / count)) > 0.1, unusual, hidden, shape))
    return min(fitting, key=lambda each: each[:3])[3]
