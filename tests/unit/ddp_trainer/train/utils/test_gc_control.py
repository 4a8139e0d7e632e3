"""Garbage collection at the steps that --gc-steps names."""

from __future__ import annotations

import gc

from ddp_trainer.train.utils.gc_control import collect_if_due, manual_gc


def test_garbage_is_collected_when_told_and_at_no_other_time() -> None:
    assert gc.isenabled()
    with manual_gc(3):
        assert not gc.isenabled()
        collected: list[int] = []
        gc.callbacks.append(lambda phase, _: collected.append(1) if phase == "start" else None)
        try:
            for step in range(1, 8):
                collect_if_due(step, 3)
        finally:
            gc.callbacks.pop()
        assert len(collected) == 2
    assert gc.isenabled()
    with manual_gc(None):
        assert gc.isenabled()
