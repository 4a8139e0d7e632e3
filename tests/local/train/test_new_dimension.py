"""A dimension that is added to the table of mesh dimensions, and nowhere else, works wherever layouts do.

The tests run a copy of both packages with one row more: ``mirror``, along which ranks compute the same as one another.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import pytest

from ddp_trainer.common.parallel_dims import WRITTEN
from tests.local.train.test_train_products import saving
from tests.local.workloads.train_forked import losses_of
from tests.support.programs import captured

ROOT: Final = Path(__file__).parents[3]
TABLE: Final = Path("ddp_trainer/common/parallel_dims.py")
BEFORE: Final = '    MeshDimension("tp"'
ROW: Final = '    MeshDimension("mirror", "compute the same, of the same samples"),\n'


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both packages, with one row more in one file."""
    copy = tmp_path_factory.mktemp("packages")
    for package in ("trainer/ddp_trainer", "kubectl_plugin/kubectl_ddp"):
        source = ROOT / package
        shutil.copytree(source, copy / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / TABLE).read_text()
    assert text.count(BEFORE) == 1
    (copy / TABLE).write_text(text.replace(BEFORE, ROW + BEFORE))
    return copy


def printed(packages: Path, program: str) -> Any:
    """Run a program with the copied packages, and return the JSON that it prints."""
    found = [sys.executable, "-c", dedent(program)]
    done = captured(found, env={**os.environ, "PYTHONPATH": str(packages)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_plugin_takes_a_job_with_it(packages: Path) -> None:
    found = printed(
        packages,
        """
        import json
        from kubectl_ddp.errors import UsageError
        from kubectl_ddp.spec.fields import FIELDS
        from kubectl_ddp.spec.layout import layout_of
        from kubectl_ddp.spec.model import parse_layouts
        from kubectl_ddp.values.quantity import NodeRange
        from tests.support.jobs import a_job

        layouts_of_job = parse_layouts("replicate=1:2,mirror=2")
        job = a_job(parallel=layouts_of_job, nnodes=NodeRange(1, 2), nproc=2)
        try:
            a_job(parallel=layouts_of_job, nnodes=NodeRange(1, 2), nproc=3)
        except UsageError as error:
            refused = error.message
        print(json.dumps({
            "flag": FIELDS["parallel"].metavar,
            "layout": str(layout_of(job)),
            "refused": refused,
        }))
        """,
    )
    assert found == {
        "flag": ",".join(f"{name}=N" for name in WRITTEN).replace("tp=N", "tp=N,mirror=N"),
        "layout": "replicate=2,mirror=2",
        "refused": "parallel 'replicate=1:2,mirror=2' has no layout of 6 ranks, which 2 nodes of 3 processes make.",
    }


def test_a_run_along_it_learns_what_one_process_does_and_goes_on_in_another_layout(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(packages))
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    runs = [saving(cut, steps, "--parallel", layout) for steps, layout in ((2, "shard=2,mirror=2"), (4, "mirror=2"))]
    wanted_losses, *parts = losses_of(tmp_path, saving(alone, 4), *runs)
    assert list(chain(*parts)) == pytest.approx(wanted_losses, rel=1e-4)
    wanted, last = (json.loads(item.with_suffix(".json").read_text()) for item in (alone, cut))
    assert last["metrics"] == pytest.approx(wanted["metrics"], rel=1e-4)
    assert {"steps": 4, "samples_lost": 0, "samples_repeated": 0}.items() <= last.items()
