"""manifests/examples is what the plugin renders, and what a cluster would take."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ddp_trainer.common.constants import SECRET_KEY, Label
from ddp_trainer.train.cli import parse
from kubectl_ddp.engines import Engine
from kubectl_ddp.render.objects import PLACEHOLDER
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from tests.support.examples import EXAMPLES, JOB_FILES
from tests.support.programs import captured
from tools.docs.examples import JOB_FILE, RENDERED, output_files

RENDERINGS = [(job_file, engine, stored) for job_file in JOB_FILES for engine, stored in output_files(job_file).items()]
DOUBTS = {"data-parallel": ("3 GPUs of each node will stand idle: nproc is 1.",)}
"""DataParallel is one process with many GPUs; that is not what they are usually for."""


def test_every_rendered_example_has_its_job_file_and_every_engine_its_examples() -> None:
    stored = {path for _, _, path in RENDERINGS}
    assert set(EXAMPLES.glob("*/*.yaml")) == stored
    assert set(EXAMPLES.glob("*.yaml")) == set(JOB_FILES)
    stems = {path.name.removesuffix(JOB_FILE) for path in JOB_FILES}
    assert {"digits", "vision"} <= stems
    engines = Counter(engine for _, engine, _ in RENDERINGS)
    assert engines.keys() == RENDERED.keys()
    assert min(engines.values()) >= 2


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_an_example_raises_no_doubt_but_those_that_it_must(job_file: Path) -> None:
    found = resolve([read(str(job_file))], DefaultingContext(image="ddp-trainer:1")).warnings
    assert tuple(item.message for item in found) == DOUBTS.get(job_file.name.removesuffix(JOB_FILE), ())


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_what_an_example_asks_of_our_trainer_is_something_that_it_does(job_file: Path) -> None:
    args = resolve([read(str(job_file))], DefaultingContext(image="ddp-trainer:1")).spec.args
    words = [str(word) for word in args]
    if words and words[0] == "train":
        parse(words[1:])


def test_the_command_in_an_example_puts_a_secret_in_the_place_of_the_published_one() -> None:
    directory = EXAMPLES / RENDERED[Engine.TRAINJOB]
    stored = directory / "digits.yaml"
    [command] = re.findall(r"^#   (sed .+) \| kubectl apply -f -$", stored.read_text(), re.MULTILINE)
    shell = ["bash", "-c", command]
    made = [captured(shell, cwd=directory, check=True).stdout for _ in range(2)]
    secrets = []
    for text in made:
        [secret] = [item for item in yaml.safe_load_all(text) if item["kind"] == "Secret"]
        run, colon, value = secret["stringData"][SECRET_KEY].partition(":")
        assert (run, colon) == (secret["metadata"]["labels"][Label.RUN_ID], ":")
        assert re.fullmatch("[0-9a-f]{64}", value)
        secrets.append(value)
    assert len({PLACEHOLDER, *secrets}) == 3
    assert made[0].replace(secrets[0], PLACEHOLDER) == stored.read_text()
