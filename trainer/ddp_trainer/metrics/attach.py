"""Public entry point of the metrics package: recorders, meter and log of this process.

The implementation is :mod:`ddp_trainer.metrics.record.recorder_factory`.
"""

from ddp_trainer.metrics.record.recorder_factory import agent_recorder, log, meter, rank_recorder

__all__ = ["agent_recorder", "log", "meter", "rank_recorder"]
