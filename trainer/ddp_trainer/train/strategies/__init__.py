"""How the ranks' copies of a model stay one model: one small protocol, one file per answer.

:class:`Strategy` is the protocol; :func:`build` makes the one that the flags name. A strategy decides who exchanges
what and when; which samples a step consumes, and whether it counts, is decided elsewhere and the same for all.
"""

from __future__ import annotations

from ddp_trainer.train.strategies.build import build
from ddp_trainer.train.strategies.strategy import Parts, Strategy

__all__ = ["Parts", "Strategy", "build"]
