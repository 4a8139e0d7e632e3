"""Recorders of a process: the public entry to metrics, see :mod:`ddp_trainer.metrics.record.recorder_factory`."""

from __future__ import annotations

from ddp_trainer.metrics.record.recorder_factory import agent_recorder, log, meter, rank_recorder

__all__ = ["agent_recorder", "log", "meter", "rank_recorder"]
