"""``profile`` of a rank of a job that runs: a plain script, its optimizer, and those that cannot answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_place import Typed, a_place

PLAIN = """\
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
from ddp_trainer.metrics import attach
meter = attach.meter()
if os.environ["RANK"] == "1":
    while True:
        time.sleep(0.05)
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
while not os.path.exists("hold"):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    meter.step(samples=2)
    time.sleep(0.005)
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """Commands beside a job of two ranks: one trains until it must hold, the other has no torch."""
    folder = tmp_path_factory.mktemp("profile")
    with a_place(folder / "state") as place:
        script = folder / "plain.py"
        script.write_text(PLAIN.replace('"hold"', repr(str(folder / "hold"))))
        typed = Typed(place)
        typed.environ["DDP_TEST_HOLD"] = str(folder / "hold")
        assert typed("submit", str(script), "--local", "--name", "digits", "-j", "1x2").returncode == 0
        assert typed("wait", "digits", "--for=step=5", "--timeout", "100s").returncode == 0
        yield typed


def test_a_trace_of_a_plain_script_comes_here_one_at_a_time_and_who_cannot_answer_says_why(
    typed: Typed, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json.gz"
    done = typed("profile", "digits", "--steps", "4", "-O", str(file), "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["rank"], document["steps"], document["size_bytes"]) == (0, 4, file.stat().st_size)
    with gzip.open(file) as trace:
        names = [event.get("name", "") for event in json.load(trace)["traceEvents"]]
    assert sum(name.startswith("Optimizer.step#AdamW.step") for name in names) == 4
    assert any("addmm" in name for name in names)

    told = typed.refused("profile", "digits", "--rank", "1", "-O", str(file), code=1)
    assert "cannot be profiled: it has not imported torch yet" in told
    assert typed("profile", "digits", "--rank", "7").returncode == 3
    assert typed("profile", "digits", "--steps", "0").returncode == 2

    # It hangs: the first one waits for a step, and the second one gets an error about that.
    command = "tr '\\0' '\\n' </proc/$RANK_PID/environ | sed -n 's/^DDP_HEARTBEAT=//p'"
    page = Path(typed("exec", "digits", "--", "sh", "-c", command).stdout.strip())
    assert page.exists()
    Path(typed.environ["DDP_TEST_HOLD"]).touch()
    waiting = typed.open("profile", "digits", "--timeout", "4s", "-O", str(tmp_path / "never"))
    while not page.with_name(f"{page.name}.profile.json").exists():
        assert waiting.poll() is None, waiting.communicate()
    second = typed("profile", "digits", "--timeout", "1s", "-O", str(tmp_path / "never"))
    assert (second.returncode, "Another profile of this rank is running." in second.stderr) == (1, True), second.stderr
    errors = waiting.communicate()[1]
    assert waiting.returncode == 124
    assert "Within 4 s the rank has not ended 6 steps" in errors
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
