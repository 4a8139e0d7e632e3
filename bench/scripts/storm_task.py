"""Digits whose steps take their time, and obey the storm: the task of ``bench storm``."""

from __future__ import annotations

import os
import time

from torch import Tensor, nn

from bench.scripts.growing_task import add_frozen_weights
from bench.scripts.storm_faults import VARIABLE, run_requested_fault
from ddp_workloads.digits import Digits, LabeledImages

PAUSE_SECONDS = 0.02


class _FaultyImages(LabeledImages):
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        run_requested_fault()
        time.sleep(PAUSE_SECONDS)
        return super().batch(ids)


class StormyDigits(Digits):
    """Digits; without a letter box they come at full speed, and are the same."""

    def model(self) -> nn.Module:
        """Return the network, with untrained weights of ``BENCH_STATE_MB``."""
        return add_frozen_weights(super().model())

    def train_samples(self) -> LabeledImages:
        return (_FaultyImages if VARIABLE in os.environ else LabeledImages)(self._train.images, self._train.labels)
