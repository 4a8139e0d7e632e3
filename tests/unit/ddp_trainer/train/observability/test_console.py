"""Progress of a run in logs, on terminals and as JSON."""

from __future__ import annotations

import io
import json

from ddp_trainer.train.loop.callbacks import StepLines
from ddp_trainer.train.observability.console import EvaluationCompleted, Mode, Progress
from tests.support.clocks import Clock


class Run:
    """Progress of a run whose steps take a second."""

    def __init__(self, mode: Mode, every_seconds: float = 5.0, every_steps: int | None = None) -> None:
        self.clock = Clock()
        self.stream = io.StringIO()
        self.progress = Progress(mode, self.stream)
        self.lines = StepLines(every_seconds, every_steps, self.clock)

    def step(self, number: int) -> None:
        self.clock.now += 1.0
        self.lines.step(self.progress, step=number, steps=20, epoch=1, samples=64, loss=0.5, learning_rate=0.1)


def test_a_log_gets_a_line_every_few_seconds() -> None:
    run = Run(Mode.PLAIN)
    run.lines.begin(0)
    for step in range(1, 11):
        run.step(step)
    assert run.stream.getvalue().splitlines() == [
        "step 5/20  epoch 1  loss 0.5000  lr 1.00e-01  64 samples/s  ETA 0:15",
        "step 10/20  epoch 1  loss 0.5000  lr 1.00e-01  64 samples/s  ETA 0:10",
    ]


def test_a_terminal_gets_one_line_that_changes() -> None:
    run = Run(Mode.LIVE)
    run.step(1)
    run.step(2)
    run.progress.show_event(EvaluationCompleted(epoch=1, step=2, metrics={"accuracy": 0.5}))
    assert run.stream.getvalue().count("\r\x1b[2Kstep ") == 2
    assert run.stream.getvalue().endswith("\nepoch 1 evaluated  accuracy 0.5000\n")


def test_json_lines_carry_every_field() -> None:
    run = Run(Mode.JSON, every_steps=2)
    run.step(1)
    run.step(2)
    run.progress.log_message("a word")
    step, note = map(json.loads, run.stream.getvalue().splitlines())
    assert (step["event"], step["step"], step["loss"], step["samples_per_second"]) == ("step", 2, 0.5, 64)
    assert note["text"] == "a word"


def test_a_silent_rank_still_raises_an_alarm() -> None:
    run = Run(Mode.SILENT, every_seconds=0)
    run.step(1)
    run.progress.log_message("for rank 0")
    run.progress.warn_rank("my disk is full")
    assert run.stream.getvalue() == "my disk is full\n"


def test_a_reader_that_goes_away_does_not_end_the_training() -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    progress = Progress(Mode.PLAIN, Broken())
    progress.log_message("first")
    progress.log_message("second")
