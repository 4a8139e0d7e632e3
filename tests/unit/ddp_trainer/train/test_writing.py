"""A checkpoint is written behind the training, and not beside it."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from ddp_trainer.train.archive import Archive
from ddp_trainer.train.checkpoint import CheckpointDirectory
from ddp_trainer.train.claim import Claim
from ddp_trainer.train.manifest import Manifest
from ddp_trainer.train.writing import Writing
from tests.unit.ddp_trainer.train.train_builders import a_manifest, a_state


def niceness() -> int:
    """Of this thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class Observed(CheckpointDirectory):
    """Notes how nice the thread is that writes."""

    seen: int

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        self.seen = niceness()
        return super().write(draft, archive)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
@pytest.mark.parametrize("behind", [True, False])
def test_only_a_thread_that_writes_behind_the_training_gives_way_to_it(behind: bool, tmp_path: Path) -> None:
    before = niceness()
    directory = Observed(tmp_path, keep=1, claim=Claim(tmp_path, generation=0, fence=0, run_id="run", token="a"))
    directory.open()
    writing = Writing(directory, a_manifest(1), a_state(1), time.monotonic())
    if behind:
        writing.start()
        writing.wait()
    else:
        writing.run()
    assert (writing.error, writing.size_bytes > 0) == (None, True)
    assert directory.seen == (min(before + 10, 19) if behind else before)
    assert niceness() == before
