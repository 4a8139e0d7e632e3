"""manifests/examples is what the plugin renders, and what a cluster would take."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kubectl_ddp.examples import JOB_FILE, RENDERED, main, rendered
from kubectl_ddp.spec.derive import Surroundings
from kubectl_ddp.spec.engine import Engine
from kubectl_ddp.spec.jobfile import read
from kubectl_ddp.spec.quantity import Nodes
from kubectl_ddp.spec.resolve import resolve

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
JOB_FILES = sorted(EXAMPLES.glob(f"*{JOB_FILE}"))


@pytest.mark.parametrize("engine", RENDERED)
@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_the_rendered_objects_are_fresh(job_file: Path, engine: Engine) -> None:
    kept = job_file.with_name(job_file.name.removesuffix(JOB_FILE) + RENDERED[engine]).read_text(encoding="utf-8")
    assert kept == rendered(job_file, engine), "run `make docs`"


def test_every_rendered_example_has_its_job_file() -> None:
    stems = {path.name.removesuffix(JOB_FILE) for path in JOB_FILES}
    for ending in RENDERED.values():
        assert {path.name.removesuffix(ending) for path in EXAMPLES.glob(f"*{ending}")} == stems
    assert len(list(EXAMPLES.iterdir())) == len(JOB_FILES) * (1 + len(RENDERED))
    assert {"digits", "vision"} <= stems


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_an_example_raises_no_doubt(job_file: Path) -> None:
    assert resolve([read(str(job_file))], Surroundings(image="ddp-trainer:1")).warnings == ()


def test_the_digits_example_is_the_job_of_the_demo() -> None:
    spec = resolve([read(str(EXAMPLES / f"digits{JOB_FILE}"))], Surroundings(image="ddp-trainer:1")).spec
    assert (spec.name, spec.nnodes, spec.nproc, spec.gpus) == ("digits", Nodes(1, 2), 2, 0)


def test_writing_the_examples_again_changes_nothing(tmp_path: Path) -> None:
    for job_file in JOB_FILES:
        (tmp_path / job_file.name).write_bytes(job_file.read_bytes())
    assert main([str(tmp_path)]) == 0
    for path in EXAMPLES.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    for engine, documents in ((Engine.PYTORCHJOB, 5), (Engine.TRAINJOB, 6), (Engine.JOBSET, 5), (Engine.JOB, 6)):
        objects = list(yaml.safe_load_all((tmp_path / f"digits{RENDERED[engine]}").read_text()))
        assert len(objects) == documents


def test_writing_the_examples_needs_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere"]) == 2
    assert "usage: " in capsys.readouterr().err
