"""``single``: one process, one device, nothing exchanged."""

from __future__ import annotations

from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.errors import BadConfig


class Single(Strategy):
    """Refuses a group, in which every rank would train a model of its own on its part of the data."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if self._group.world_size > 1:
            raise BadConfig(
                f"--strategy {parts.config.strategy} trains in one process, and this group has "
                f"{self._group.world_size} ranks.",
                hint="Start one process, or give --strategy ddp.",
            )
