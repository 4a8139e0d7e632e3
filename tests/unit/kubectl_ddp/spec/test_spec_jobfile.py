"""Job files are read strictly, and what is wrong in one is named with its line.

Most of these files have the earlier form, whose keys are read like those below ``spec``.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.spec.job_file import JobFile, parse, read
from kubectl_ddp.spec.job_key import OriginKind

HEADER = "apiVersion: ddp.dev/v1\nkind: Job\n"


def file(text: str) -> JobFile:
    return JobFile("job.yaml", HEADER + text, Path("/jobs"))


def said(text: str) -> dict[str, object]:
    return {key: given.raw for key, given in parse(file(text)).items()}


def test_scalars_are_taken_as_they_are_written_and_not_as_yaml_1_1_reads_them() -> None:
    values = {"nnodes": "1:2", "env.A": "no", "env.B": "1e3", "env.C": "0123", "env.D": "12:30:45", "memory": "1_000"}
    assert said("nnodes: 1:2\nenv: {A: no, B: 1e3, C: 0123, D: 12:30:45}\nmemory: 1_000") == values


def test_lists_hold_words_whatever_they_look_like() -> None:
    assert said("args: [train, --epochs, 30, yes, 1:2]") == {"args": ["train", "--epochs", "30", "yes", "1:2"]}


def test_values_remember_their_line() -> None:
    origin = parse(file("name: a\nenv:\n  X: 1\n"))["env.X"].origin
    assert (origin.kind, origin.place) == (OriginKind.FILE, "job.yaml line 5")


def test_a_script_is_looked_for_beside_its_job_file() -> None:
    assert said("script: train.py") == {"script": "/jobs/train.py"}


@pytest.mark.parametrize(("text", "sentence"), [
    ("nnode: 2", "job.yaml line 3: a job has no key 'nnode'. Did you mean 'nnodes'?"),
    ("name: a\nname: b", "job.yaml line 4: 'name' is on line 3 already. Keep one of the two."),
    ("env: {A: 1, A: 2}", "job.yaml line 3: 'A' is on line 3 already. Keep one of the two."),
    ("name:", "job.yaml line 3: name has no value. Give it one, or leave the key out."),
    ("env: [A=1]", "job.yaml line 3: env is a map. Write one 'NAME: value' per line below it."),
    ("name: {a: b}", "job.yaml line 3: name holds a list or a map where one value is expected."),
    ("args: [[a]]", "job.yaml line 3: args holds a list or a map where one value is expected."),
    ("name: !!python/name:os.system", "job.yaml line 3: name has the tag"),
    ("name: !secret x", "job.yaml line 3: name has the tag '!secret', which means nothing here."),
    ("? [a]\n: b", "job.yaml line 3: a key must be a string."),
    ("name: [a", "job.yaml line 3 is not valid YAML"),
    ("script: a.py\nmodule: b", "job.yaml: script, module and command exclude each other. Keep the one to run."),
    ("---\nkind: Job", "job.yaml holds 2 documents where one job is expected."),
    ("\x01: a", "job.yaml is not valid YAML"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(file(text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "job.yaml holds nothing"),
    ("[]", "job.yaml holds no map of keys"),
    ("name: a", "job.yaml lacks 'apiVersion: ddp.dev/v1alpha1' and 'kind: DDPJob'."),
    ("apiVersion: ddp.dev/v1\nname: a", "job.yaml lacks 'kind: DDPJob'."),
    ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob", "'kubeflow.org/v1', and a job file says 'ddp.dev/v1alpha1'."),
    ("apiVersion: [a]\nkind: Job", "apiVersion is '...'"),
    pytest.param("args: " + "[" * 5000 + "]" * 5000, "job.yaml is nested too deeply", id="brackets"),
])  # fmt: skip
def test_a_file_that_is_no_job_file_is_told_what_one_is(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse(JobFile("job.yaml", text, Path()))


DDPJOB = "apiVersion: ddp.dev/v1alpha1\nkind: DDPJob\n"


def test_a_ddpjob_has_the_keys_of_a_job_below_metadata_and_spec() -> None:
    warned: list[str] = []
    text = f"{DDPJOB}metadata:\n  name: a\n  namespace: b\nspec:\n  nnodes: 1:2\n  env: {{A: no}}\n"
    layer = parse(JobFile("job.yaml", text, Path()), warned.append)
    values = {"name": "a", "namespace": "b", "nnodes": "1:2", "env.A": "no"}
    assert {key: given.raw for key, given in layer.items()} == values
    assert layer["nnodes"].origin.place == "job.yaml line 7"
    assert warned == []


def test_the_earlier_form_is_read_with_a_warning() -> None:
    warned: list[str] = []
    assert parse(file("name: a"), warned.append)["name"].raw == "a"
    [warning] = warned
    assert "Begin it with 'apiVersion: ddp.dev/v1alpha1'" in warning


def test_labels_of_the_object_are_not_those_of_the_pods_and_a_warning_says_so() -> None:
    warned: list[str] = []
    assert parse(JobFile("job.yaml", f"{DDPJOB}metadata: {{labels: {{a: b}}}}", Path()), warned.append) == {}
    assert warned == ["job.yaml line 3: metadata.labels is for 'kubectl apply'. spec.labels are those of the pods."]


@pytest.mark.parametrize(("text", "sentence"), [
    ("gpus: 1", "job.yaml line 3: a DDPJob has no key 'gpus'. Write it below spec."),
    ("status: {}", "job.yaml line 3: a DDPJob has no key 'status'."),
    ("spec: [a]", "job.yaml line 3: spec is a map."),
    ("spec: {name: a}", "job.yaml line 3: spec has no key 'name'. Write it below metadata."),
    ("metadata: {gpus: 1}", "job.yaml line 3: metadata has no key 'gpus'. Write it below spec."),
    ("metadata: {nam: a}", "job.yaml line 3: metadata has no key 'nam'. Did you mean 'name'?"),
    ("spec: {nnode: 1}", "job.yaml line 3: a job has no key 'nnode'. Did you mean 'nnodes'?"),
    ("spec: {suspend: true}", "job.yaml line 3: suspend is of an object in a cluster."),
])  # fmt: skip
def test_a_key_in_the_wrong_place_is_one_sentence_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse(JobFile("job.yaml", DDPJOB + text, Path()))


def test_aliases_cannot_make_a_small_file_large() -> None:
    letters = "abcdefghijklmnopqrstu"
    bomb = [f"{name}: &{name} [*{before}, *{before}]" for before, name in itertools.pairwise(letters)]
    with pytest.raises(UsageError):
        parse(file("\n".join(["a: &a [x, x]", *bomb])))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe\x00", "is not UTF-8 text: byte 0 is invalid."), (b"#" * (2**20 + 1), "is larger than 1 MiB")],
    ids=["no text", "large"],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "job.yaml"
    with pytest.raises(NotFound, match="There is no job file"):
        read(str(path))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read(str(tmp_path))
    path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read(str(path))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + "name: a").encode())
    assert read(str(path))["name"].raw == "a"
