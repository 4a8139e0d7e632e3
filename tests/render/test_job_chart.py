"""``charts/ddp-job`` is one DDPJob from the given values, by Helm 3 and Helm 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings

from kubectl_ddp.client.layers import layer_of_object
from kubectl_ddp.kube.job_kinds import CONTROLS
from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.spec.serialization import to_ddpjob
from kubectl_ddp.version import version
from tests.support.examples import JOB_FILES
from tests.support.helm import CHARTS, KUBERNETES, Helm, Object
from tests.support.jobs import jobs
from tests.support.refused_jobs import AS_TEXT, spec_with

CHART = CHARTS / "ddp-job"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
PLAIN: dict[str, Any] = {"module": "vision.train", "image": "registry.example.com/vision:1"}


def made(helm: Helm, values: dict[str, Any], **how: Any) -> Object:
    [job] = helm.template(CHART, values, release="run", namespace="team", kubernetes=KUBERNETES, **how)
    return job


def refusal(helm: Helm, values: dict[str, Any], **how: Any) -> str:
    message = helm.error_response(CHART, values, release="run", kubernetes=KUBERNETES, **how)
    assert "don't meet the specifications of the schema" in message
    return message


def needs_a_file(spec: dict[str, Any]) -> bool:
    """True if the submitter sends code with the job."""
    return "code" in spec or ("script" in spec and "codeClaim" not in spec)


def test_every_key_of_a_ddpjob_is_a_value_and_none_has_a_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert {*values} == {*FILE_KEYS, *CONTROLS} - {"namespace", "code"}
    assert {*values.values()} == {None}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_release_is_the_job_of_its_values(each_helm: Helm, scenario: Path) -> None:
    values = yaml.safe_load(scenario.read_text(encoding="utf-8"))
    job = made(each_helm, values)
    assert (job["kind"], job["metadata"]["name"], job["metadata"]["namespace"]) == ("DDPJob", "run", "team")
    assert job["spec"] == values
    resolve([layer_of_object(job)], DefaultingContext(image="registry.example.com/train:1", reads_files=False))
    linted = each_helm.run("lint", "--strict", str(CHART), "--values", str(scenario), "--kube-version", KUBERNETES)
    assert linted.code == 0, linted.out + linted.err
    assert "WARNING" not in linted.out


@given(jobs())
@settings(deadline=None, max_examples=20)
def test_any_job_can_be_a_release(newest_helm: Helm, spec: JobSpec) -> None:
    values = to_ddpjob(spec)["spec"]
    assume(not needs_a_file(values))
    assert made(newest_helm, values)["spec"] == values


@pytest.fixture(scope="module")
def newest_helm(helm: Helm) -> Helm:
    """A Helm whose check of values takes every character."""
    if helm.version < (3, 18, 0):
        pytest.skip("This Helm checks values as YAML, which has no control characters.")
    return helm


def test_the_specification_of_every_example_is_a_release(helm: Helm) -> None:
    specs = [yaml.safe_load(path.read_text(encoding="utf-8"))["spec"] for path in JOB_FILES]
    released = [spec for spec in specs if not needs_a_file(spec)]
    assert len(released) > len(specs) / 2
    assert [made(helm, spec)["spec"] for spec in released] == released


def test_what_is_not_set_stays_out(each_helm: Helm) -> None:
    assert made(each_helm, {})["spec"] == {}
    unset = {"gpus": None, "env": {}, "secretEnv": None, "labels": {"team": None, "cost": "a"}, "global": {"x": 1}}
    assert made(each_helm, PLAIN | unset)["spec"] == PLAIN | {"labels": {"cost": "a"}}
    assert made(each_helm, PLAIN | {"name": "other"})["metadata"]["name"] == "other"
    taken_back = [item for word in ("image=null", "labels.team=null") for item in ("--set", word)]
    assert made(each_helm, PLAIN | {"labels": {"team": "a"}}, words=taken_back)["spec"] == {"module": "vision.train"}


def test_text_that_looks_like_another_value_stays_text(each_helm: Helm) -> None:
    texts = ["0123", "12345678901234567890", "1e3", "1_000", "yes", "null", "~", "1:30", "", " ", "0x1F", "\n", "<&>"]
    values = PLAIN | {"args": texts, "env": {f"A{number}": text for number, text in enumerate(texts)}}
    assert made(each_helm, values)["spec"] == values
    assert made(each_helm, {}, words=["--set-string", "env.SEED=123"])["spec"] == {"env": {"SEED": "123"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *((changes, "") for changes in AS_TEXT),
        ({"env": {"A": 0.5}}, "env"),
        ({"gpuType": 12345}, "gpuType"),
        ({"nodes": 2}, "nodes"),
        ({"networkPolicy": {"enabled": False}}, "networkPolicy"),
        ({"terminationGracePeriodSeconds": None}, "terminationGracePeriodSeconds"),
        ({"args": [True]}, "string"),
        ({"name": "Big_Run"}, "name"),
        ({"name": "a" * 49}, "48"),
        ({"code": "src"}, "code"),
        ({"module": None, "script": "train.py"}, "codeClaim"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_the_schema_refuses_what_is_no_value_of_a_ddpjob(each_helm: Helm, changes: dict[str, Any], words: str) -> None:
    values = spec_with(changes) | {key: value for key, value in changes.items() if value is None}
    assert words in refusal(each_helm, values)


def test_a_number_of_the_command_line_is_no_text(each_helm: Helm) -> None:
    assert "SEED" in refusal(each_helm, PLAIN, words=["--set", "env.SEED=123"])


def test_the_notes_name_the_next_commands(helm: Helm) -> None:
    if helm.major < 4:
        pytest.skip("Helm 3 makes notes with a cluster only; the test on a cluster looks at them.")
    message = helm.notes(CHART, PLAIN, release="run", namespace="team-a")
    assert "kubectl get ddp run -n team-a" in message
    assert "helm uninstall run -n team-a" in message
    assert "Without checkpointClaim" in message
    assert "Without checkpointClaim" not in helm.notes(CHART, PLAIN | {"checkpointClaim": "c"}, release="run")


def test_the_chart_is_of_this_release() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert metadata["version"] == metadata["appVersion"] == version()
