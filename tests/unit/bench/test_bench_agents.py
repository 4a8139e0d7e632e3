from __future__ import annotations

import io

from bench.drivers.two_agent_job import StepLog


def test_steps_belong_to_the_group_that_was_told_of_last() -> None:
    telling = StepLog()
    telling.listen(
        io.StringIO(
            '{"event": "started", "world_size": 2}\n{"event": "step"}\nddp-launch: a sentence\n'
            '{"event": "started", "world_size": 1}\n{"event": "step"}\n{"event": "step"}\n'
        )
    )
    assert [(step.world, step.group) for step in telling.steps] == [(2, 1), (1, 2), (1, 2)]
    assert telling.other == ["ddp-launch: a sentence\n"]
