"""The state of a rank, from its launcher to ``kubectl ddp hang``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddp_trainer.common.hanging import GroupPosition, RankState, RankStatus
from kubectl_ddp.hang.collector import parse_rank_status


def test_positions_travel_in_a_look() -> None:
    positions = (
        GroupPosition(group="", enqueued=40, completed=39),
        GroupPosition(group="tp", enqueued=7, started=7, completed=6),
    )
    place: dict[str, Any] = {"rank": 1, "local_rank": 1, "node": "worker-0", "state": RankState.ALIVE}
    waits: dict[str, Any] = {"seconds": 20.0, "limit": 30.0, "sequence": 40, "collectives": ("all_reduce[[]]",)}
    status = RankStatus(**place, **waits, positions=positions)
    assert parse_rank_status(asdict(status)) == status
