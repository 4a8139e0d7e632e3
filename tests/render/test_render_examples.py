"""manifests/examples is what the plugin renders, and what a cluster would take."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ddp_trainer.common.constants import SECRET_KEY, Label
from ddp_trainer.train.cli import parse
from kubectl_ddp.engines import Engine
from kubectl_ddp.kube.job_kinds import KIND
from kubectl_ddp.render.objects import PLACEHOLDER
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.values.quantity import NodeRange
from tools.docs.examples import JOB_FILE, RENDERED, targets

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
JOB_FILES = sorted(EXAMPLES.glob(f"*{JOB_FILE}"))


RENDERINGS = [(job_file, engine, kept) for job_file in JOB_FILES for engine, kept in targets(job_file).items()]
DOUBTS = {"data-parallel": ("3 GPUs of each node will stand idle: nproc is 1.",)}
"""DataParallel is one process with many GPUs; that is not what they are usually for."""


def test_every_rendered_example_has_its_job_file_and_every_engine_its_examples() -> None:
    kept = {path for _, _, path in RENDERINGS}
    assert set(EXAMPLES.glob("*/*.yaml")) == kept
    assert set(EXAMPLES.glob("*.yaml")) == set(JOB_FILES)
    stems = {path.name.removesuffix(JOB_FILE) for path in JOB_FILES}
    assert {"digits", "vision"} <= stems
    engines = Counter(engine for _, engine, _ in RENDERINGS)
    assert engines.keys() == RENDERED.keys()
    assert min(engines.values()) >= 2


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_an_example_raises_no_doubt_but_those_that_it_must(job_file: Path) -> None:
    found = resolve([read(str(job_file))], DefaultingContext(image="ddp-trainer:1")).warnings
    assert tuple(each.message for each in found) == DOUBTS.get(job_file.name.removesuffix(JOB_FILE), ())


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_what_an_example_asks_of_our_trainer_is_something_that_it_does(job_file: Path) -> None:
    words = [str(word) for word in arguments(job_file)]
    if words and words[0] == "train":
        parse(words[1:])


ROW = re.compile(r"^\| ([^|]+) \| \[([\w-]+)\]\(\2\.ddp\.yaml\) \| (?:`([^`]+)`)? ?\|$", re.MULTILINE)


def test_the_table_shows_every_thing_that_people_look_for_and_where_an_example_says_it() -> None:
    rows = ROW.findall((EXAMPLES / "README.md").read_text())
    assert {stem for _, stem, _ in rows} == {path.name.removesuffix(JOB_FILE) for path in JOB_FILES}
    seeds = ast.get_docstring(ast.parse((ROOT / "tests" / "local" / "train" / "test_train_seeds.py").read_text())) or ""
    looked_for = {line[:36].strip() for line in seeds.splitlines() if line[36:38] == "  " and line[:1].isalpha()}
    assert len(looked_for) > 8
    assert {what for what, _, _ in rows} == looked_for | {"a trainer of one's own"}
    for what, stem, how in rows:
        job_file = EXAMPLES / f"{stem}{JOB_FILE}"
        said = " ".join(str(word) for word in arguments(job_file)).replace("=", " ")
        assert how in said or how in [line.strip() for line in job_file.read_text().splitlines()], what


def arguments(job_file: Path) -> tuple[str, ...]:
    return resolve([read(str(job_file))], DefaultingContext(image="ddp-trainer:1")).spec.args


def test_the_digits_example_is_the_job_of_the_demo() -> None:
    spec = resolve([read(str(EXAMPLES / f"digits{JOB_FILE}"))], DefaultingContext(image="ddp-trainer:1")).spec
    assert (spec.name, spec.nnodes, spec.nproc, spec.gpus) == ("digits", NodeRange(1, 2), 2, 0)


def test_each_engine_has_the_objects_of_an_example() -> None:
    for engine, documents in ((Engine.PYTORCHJOB, 6), (Engine.TRAINJOB, 7), (Engine.JOBSET, 6), (Engine.JOB, 7)):
        objects = list(yaml.safe_load_all((EXAMPLES / RENDERED[engine] / "digits.yaml").read_text()))
        assert len(objects) == documents


def test_a_directory_of_an_engine_holds_kubernetes_objects_alone() -> None:
    for directory in RENDERED.values():
        for path in (EXAMPLES / directory).iterdir():
            objects = list(yaml.safe_load_all(path.read_text()))
            assert objects
            assert not [item for item in objects if item["kind"] == KIND], path


def test_the_command_in_an_example_puts_a_secret_in_the_place_of_the_published_one() -> None:
    directory = EXAMPLES / RENDERED[Engine.TRAINJOB]
    kept = directory / "digits.yaml"
    [command] = re.findall(r"^#   (sed .+) \| kubectl apply -f -$", kept.read_text(), re.MULTILINE)
    made = [
        subprocess.run(["bash", "-c", command], cwd=directory, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    secrets = []
    for text in made:
        [secret] = [item for item in yaml.safe_load_all(text) if item["kind"] == "Secret"]
        run, colon, value = secret["stringData"][SECRET_KEY].partition(":")
        assert (run, colon) == (secret["metadata"]["labels"][Label.RUN_ID], ":")
        assert re.fullmatch("[0-9a-f]{64}", value)
        secrets.append(value)
    assert len({PLACEHOLDER, *secrets}) == 3
    assert made[0].replace(secrets[0], PLACEHOLDER) == kept.read_text()
