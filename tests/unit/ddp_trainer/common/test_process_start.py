"""Start time of a process."""

from __future__ import annotations

import os
import time

from ddp_trainer.common.process_start import process_start


def test_the_start_of_a_process_is_in_the_past() -> None:
    assert time.time() - 3600 * 24 < process_start() <= time.time()
    read, write = os.pipe()
    before = time.time()
    if not (child := os.fork()):
        os.write(write, repr(process_start()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    # The kernel counts the start in hundredths of a second.
    assert before - 0.05 <= float(os.read(read, 99)) <= time.time() + 0.05, "a fork has its own start"
