"""Every measurement of ``bench`` still completes: its smallest part, at sizes whose figures mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from bench.__main__ import names
from tests.support.programs import captured

ROOT = Path(__file__).resolve().parents[2]
SMALLEST: Final = {
    "bubble": ("--only gpipe", "STEPS, UNLIKE = 2, 1"),
    "checkpoint": ("--only kills,object-store", "QUICK_KILLS, QUICK_BYTES, STATE_BYTES = 1, 10_000, 10_000"),
    "cli": ("", "JOBS = 2"),
    "exact": ("", "STEPS, COST_STEPS, COST_WORLD, QUICK_WORLDS, RESIZES, CONTROL_WORLDS = 2, 2, 1, (), (1,), ()"),
    "exits": ("--only torch", "os.environ['EXITS_RUNS'] = '1'"),
    "hang": ("--only script", "KINDS, os.environ['HANG_ROUNDS'] = {'stop': KINDS['stop']}, '1'"),
    "metrics": ("", "measure_autolog = lambda *_: None"),
    "overhead": ("--only tiny", "OURS, one = ('ours',), one_run; one_run = lambda *what: one(*what[:3], 20)"),
    "parallel": ("--only replicate2_tp2", "QUICK_STEPS, LAYOUTS = 1, {'replicate2_tp2': ('--parallel', 'tp=2')}"),
    "peers": (
        "--only torchrun,worker_killed --out build/bench-peers-smallest",
        "CALM_SECONDS, QUICK_GIVE_UP_SECONDS = 0.5, 1.0; shutil.rmtree(ROOT / 'build/bench-peers-smallest', True)",
    ),
    "recovery": ("--only script_killed", ""),
    "redaction": ("", "BYTES = 1000"),
    "rendezvous": ("", "QUICK_AGENTS, HANDSHAKES = (4,), 1"),
    "samples": ("--only worlds", "PEERS, COLUMNS = {}, {'one': ResizeSchedule(((1, None),), lambda _: 32)}"),
    "scale": (
        "--only samples,resume,save",
        "STEPS, SAMPLES, QUICK_STATES = 1, {'100k': 100, '10m': 200, '100m': 300}, ('10mb',)",
    ),
    "sharding": ("--only memory", "QUICK_STEPS, MEMORY_STEPS, LAYOUTS = 1, 1, [Row('shard=2')]"),
    "storm": (
        "--only ours",
        "NODES = NPROC = 1; CALM_SECONDS, EVERY_SECONDS, os.environ['STORM_FAULTS'] = 0.1, 1.0, '1'",
    ),
    "why": ("--only import-error", "import os; os.environ['KUBECONFIG'] = '/dev/null'"),
}
"""Measurement → its flags, and changes of its module."""
ELSEWHERE: Final = {
    "controller": "needs a cluster",
    "list": "needs a cluster",
    "recovery-cluster": "needs a cluster",
    "startup": "needs a cluster",
    "trainjobs": "needs a cluster",
    "demo": "is `make demo`, which CI runs",
    "gpu": "is rehearsed by test_bench_gpu_checks.py",
    "trace": "runs in test_the_paths_of_a_step_and_of_a_death_do_not_grow",
    "rules": "needs a Prometheus and a minute; test_rules_fire.py evaluates the rules",
}
"""Measurement → why it is not run here."""
PROGRAM: Final = """
import os, sys
from bench.__main__ import load, main
name, changes, *flags = sys.argv[1:]
module = vars(load(name))
if "interleaved" in module:
    every = module["interleaved"]
    module["interleaved"] = lambda arms, rounds, options: every(arms, rounds=1, options=options)
exec(changes, module)
sys.exit(main([name, "--quick", *flags]))
"""


def test_every_measurement_is_run_or_has_a_reason() -> None:
    assert sorted([*SMALLEST, *ELSEWHERE]) == names()


def test_the_paths_of_a_step_and_of_a_death_do_not_grow() -> None:
    command = [sys.executable, "-m", "bench", "trace"]
    done = captured(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLEST)
def test_a_measurement_comes_to_its_end(name: str) -> None:
    flags, changes = SMALLEST[name]
    command = [sys.executable, "-c", PROGRAM, name, changes, *flags.split()]
    done = captured(command, cwd=ROOT)
    assert done.returncode in {0, 1}, done.stderr  # 1: a bar does not hold
    line = json.loads(done.stdout)
    assert (line["bench"], bool(line["figures"])) == (name, True)
