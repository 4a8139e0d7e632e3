"""Strategy ``single``: one process, one device, no communication."""

from __future__ import annotations

from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.errors import BadConfig


class Single(Strategy):
    """Training in one process.

    It rejects a group of several ranks: each would train a separate model on its part of the data.

    Raises:
        BadConfig: The group has more than one rank.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if self._group.world_size > 1:
            raise BadConfig(
                f"--strategy {parts.config.strategy} trains in one process, and this group has "
                f"{self._group.world_size} ranks.",
                hint="Start one process, or give --strategy ddp.",
            )
