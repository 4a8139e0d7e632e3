"""Progress of a run in logs, on terminals and as JSON."""

from __future__ import annotations

import io
import json

from ddp_trainer.train.observability.console import EvaluationCompleted, Mode, Progress, clock_time
from tests.support.train_builders import Clock


def a_progress(mode: Mode, clock: Clock, **changes: float) -> tuple[Progress, io.StringIO]:
    stream = io.StringIO()
    every = {"every_seconds": 5.0, "every_steps": None, **changes}
    return Progress(mode, stream, clock, **every), stream  # type: ignore[arg-type] # a builder


def report(progress: Progress, clock: Clock, step: int) -> None:
    clock.now += 1.0
    progress.step(step=step, steps=20, epoch=1, samples=64, loss=0.5, learning_rate=0.1)


def test_a_log_gets_a_line_every_few_seconds() -> None:
    clock = Clock()
    progress, stream = a_progress(Mode.PLAIN, clock)
    progress.begin(0)
    for step in range(1, 11):
        report(progress, clock, step)
    assert stream.getvalue().splitlines() == [
        "step 5/20  epoch 1  loss 0.5000  lr 1.00e-01  64 samples/s  ETA 0:15",
        "step 10/20  epoch 1  loss 0.5000  lr 1.00e-01  64 samples/s  ETA 0:10",
    ]


def test_a_terminal_gets_one_line_that_changes() -> None:
    clock = Clock()
    progress, stream = a_progress(Mode.LIVE, clock)
    report(progress, clock, 1)
    report(progress, clock, 2)
    progress.show_event(EvaluationCompleted(epoch=1, step=2, metrics={"accuracy": 0.5}))
    assert stream.getvalue().count("\r\x1b[2Kstep ") == 2
    assert stream.getvalue().endswith("\nepoch 1 evaluated  accuracy 0.5000\n")


def test_json_lines_carry_every_field() -> None:
    clock = Clock()
    progress, stream = a_progress(Mode.JSON, clock, every_steps=2)
    report(progress, clock, 1)
    report(progress, clock, 2)
    progress.log_message("a word")
    step, note = map(json.loads, stream.getvalue().splitlines())
    assert (step["event"], step["step"], step["loss"], step["samples_per_second"]) == ("step", 2, 0.5, 64)
    assert note["text"] == "a word"


def test_a_silent_rank_still_raises_an_alarm() -> None:
    clock = Clock()
    progress, stream = a_progress(Mode.SILENT, clock, every_seconds=0)
    report(progress, clock, 1)
    progress.log_message("for rank 0")
    progress.warn_rank("my disk is full")
    assert stream.getvalue() == "my disk is full\n"


def test_a_reader_that_goes_away_does_not_end_the_training() -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    progress = Progress(Mode.PLAIN, Broken(), Clock(), every_seconds=0, every_steps=None)
    progress.log_message("nobody hears")
    progress.log_message("this either")


def test_durations_read_like_a_clock() -> None:
    assert [clock_time(seconds) for seconds in (0, 59.6, 3600)] == ["0:00", "1:00", "1:00:00"]
