"""Metrics of scripts that know nothing of us, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from ddp_trainer.launch.in_worker import bootstrap
from ddp_trainer.metrics.serve.collector import Exposition
from tests.support.launch_harness import SCRIPTS, Stage
from tests.support.metrics_processes import Scrape
from tests.support.programs import captured

READ = """
import json, os
from pathlib import Path
from ddp_trainer.metrics.storage.mmap_store import RANK, read

def own_value(name):
    return read(Path(os.environ["DDP_METRICS_DIR"], "rank-0.board"), RANK).values.get(name, 0.0)
"""
"""Function with which a script of these tests reads its own metrics."""

SHAPES = (
    READ
    + """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, IterableDataset

data = TensorDataset(torch.randn(22, 4), torch.randn(22, 1))
seen, before = {}, [0.0, 0.0]

def note(shape):
    torch.optim.SGD([torch.ones(1)]).step()  # another optimizer: flushes the counters
    now = [own_value("ddp_steps_total"), own_value("ddp_samples_total")]
    seen[shape] = [new - old for new, old in zip(now, before)]
    before[:] = now

def model_and(kind, **options):
    model = nn.Linear(4, 1)
    return model, kind(model.parameters(), lr=0.01, **options)

def compute(model, batch):
    nn.functional.mse_loss(model(batch[0]), batch[1]).backward()

model, optimizer = model_and(torch.optim.SGD)
for batch in DataLoader(data, batch_size=4):
    compute(model, batch)
    optimizer.step()
note("the last batch is small")

def collate(rows):
    return [torch.stack(column) for column in zip(*rows)]

for batch in DataLoader(data, batch_size=4, num_workers=2, collate_fn=collate):
    compute(model, batch)
    optimizer.step()
note("workers, and another collate")

class Rows(IterableDataset):
    def __iter__(self):
        return (data[index] for index in range(10))

for batch in DataLoader(Rows(), batch_size=4):
    compute(model, batch)
    optimizer.step()
    with torch.no_grad():
        for held_out in DataLoader(data, batch_size=11):
            model(held_out[0])
note("a stream, and an evaluation after each step")

child = os.fork()
if not child:
    optimizer.step()
    os._exit(0)
os.waitpid(child, 0)
compute(model, data[:5])
optimizer.step()
note("a fork")

class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        raise LookupError("row")

for attempt in (lambda: next(iter(DataLoader(Broken()))), lambda: torch.ones(1).sum().backward()):
    try:
        attempt()
    except Exception as error:
        seen.setdefault("errors", []).append(type(error).__name__)
print(json.dumps(seen), flush=True)
"""
)

OWN_METER = (
    READ
    + """
import torch
before = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
from ddp_trainer.metrics import attach
meter = attach.meter()
assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is not before
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    (weight * 2).sum().backward()
    optimizer.step()
    meter.step(samples=7)
print(json.dumps([own_value("ddp_steps_total"), own_value("ddp_samples_total")]), flush=True)
"""
)


COMPILED = """
import torch
from torch._dynamo.utils import counters
graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
forward = torch.compile(lambda batch: (weight * batch).sum(), backend=backend, fullgraph=True)
step = torch.compile(optimizer.step, backend=backend)
for _ in range(3):
    forward(torch.ones(2)).backward()
    step()
print(len(graphs), sum(counters["graph_break"].values()))
"""


def worker(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the process of a rank without its launcher."""
    path = folder / "script.py"
    path.write_text(script)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "TORCHEL"))}
    command = [sys.executable, "-u", str(bootstrap.__file__), str(os.getpid()), "script", str(path)]
    return captured(command, env=clean | env, timeout=120)


def test_a_plain_ddp_script_is_seen_step_by_step(stage: Stage) -> None:
    boards = stage.folder / "boards"
    flags = ["--nproc-per-node", "2", str(SCRIPTS / "plain_ddp.py"), "--epochs", "1", "--output", str(stage.folder)]
    run = stage.launch(*flags, DDP_METRICS_DIR=str(boards), DDP_METRICS_PORT=str(stage.port), OMP_NUM_THREADS="1")
    assert run.code() == 0, run.output
    page = Scrape(generate_latest(Exposition(boards, "plain")).decode())
    for rank in ("0", "1"):
        steps = page.value("ddp_steps_total", rank=rank)
        assert (steps, page.value("ddp_samples_total", rank=rank)) == (128, 4096)
        for phase in ("data_wait", "forward", "backward", "optimizer", "comm_exposed"):
            assert page.value("ddp_step_phase_seconds_total", rank=rank, phase=phase), phase
        # Where this fails, look at what torch has made of the reducer's timer.
        assert (page.value("ddp_sampled_steps_total", rank=rank) or 0) >= 3
        assert page.value("ddp_sampled_busy_seconds_total", rank=rank)
        assert page.value("ddp_sampled_comm_exposed_seconds_total", rank=rank)
        assert page.value("ddp_rank_info", rank=rank, backend="gloo", device="cpu") == 1
    seconds = sum(sample.value for sample in page.samples if sample.name == "ddp_step_phase_seconds_total") / 2
    assert page.value("ddp_step_duration_seconds_sum") == pytest.approx(seconds, rel=0.5)
    assert page.value("ddp_step_duration_seconds_count") == 128
    assert page.value("ddp_learning_rate") == pytest.approx(0.01)
    assert page.value("ddp_job_info", parallelism="ddp", precision="float32") == 1
    assert page.value("ddp_epoch") is None, "nobody knows"


def test_steps_and_samples_are_counted_whatever_the_loop_looks_like(tmp_path: Path) -> None:
    done = worker(tmp_path, SHAPES, DDP_METRICS_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "metrics" not in done.stderr
    assert json.loads(done.stdout) == {
        "the last batch is small": [6, 22],
        "workers, and another collate": [6, 22],
        "a stream, and an evaluation after each step": [3, 10],
        "a fork": [1, 0],
        "errors": ["LookupError", "RuntimeError"],
    }


def test_a_script_that_reports_its_steps_itself_is_listened_to_alone(tmp_path: Path) -> None:
    done = worker(tmp_path, OWN_METER, DDP_METRICS_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3, 21]


def test_what_a_script_compiles_is_what_it_would_be_without_us(tmp_path: Path) -> None:
    done = [worker(tmp_path, COMPILED, DDP_METRICS_DIR=str(tmp_path), DDP_METRICS_HOOKS=switch) for switch in "01"]
    assert [item.returncode for item in done] == [0, 0], done[1].stderr
    assert done[0].stdout == done[1].stdout


@pytest.mark.parametrize("switch", [{"DDP_METRICS_HOOKS": "0"}, {"DDP_METRICS_DIR": ""}], ids=["off", "no-metrics"])
def test_hooks_that_are_not_wanted_leave_torch_as_it_is(tmp_path: Path, switch: dict[str, str]) -> None:
    script = (
        "import sys, torch\n"
        "fetch = torch.utils.data.dataloader._BaseDataLoaderIter.__next__\n"
        "print('ddp_trainer' in sys.modules, fetch.__code__.co_filename)"
    )
    done = worker(tmp_path, script, **{"DDP_METRICS_DIR": str(tmp_path), **switch})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False")
    assert "ddp_trainer" not in done.stdout
    assert not list(tmp_path.glob("*.board"))
