"""The Secret of a run: who mounts it and how, and that its value stands nowhere else."""

from __future__ import annotations

import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.constants import SECRET_KEY, Env, Label, Path
from ddp_trainer.common.safe_text import HIDDEN, redact_text
from ddp_trainer.net.run_secret import read_run_secret
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, render
from kubectl_ddp.render.objects import new_secret, secret_name
from kubectl_ddp.render.pod import USER
from kubectl_ddp.util.yaml_text import to_json
from tests.support.jobs import a_job
from tests.support.rendered import RUN, templates

ALL_ENGINES = [Engine(engine) for engine in ENGINES]
FILE = f"{Path.SECRET}/{SECRET_KEY}"


def secret_of(objects: list[Object]) -> Object:
    [secret] = [item for item in objects if item["kind"] == "Secret"]
    return secret


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_worker_and_store_read_one_file_and_may_not_write_it(engine: Engine) -> None:
    objects = render(a_job(engine=engine), RUN)
    secret = secret_of(objects)
    for template in templates(objects):
        pod = template["spec"]
        [container] = pod["containers"]
        [volume] = [item for item in pod["volumes"] if "secret" in item]
        assert volume["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o400}
        [mount] = [item for item in container["volumeMounts"] if item["name"] == volume["name"]]
        assert (mount["mountPath"], mount["readOnly"]) == (Path.SECRET, True)
        assert {"name": Env.SECRET_FILE, "value": FILE} in container["env"]
        # Files of a Secret belong to root; the group of the pod is how another user reads them.
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] == USER


@pytest.mark.parametrize("engine", ALL_ENGINES)
@pytest.mark.parametrize("site", Site)
def test_the_value_is_the_run_and_256_bits_and_stands_in_the_secret_alone(engine: Engine, site: Site) -> None:
    value = new_secret()
    objects = render(a_job(engine=engine, namespace="ml"), RUN, site=site, run_secret=value)
    secret = secret_of(objects)
    assert (secret["type"], secret["immutable"]) == ("Opaque", True)
    assert (secret["metadata"]["namespace"], secret["metadata"]["labels"][Label.RUN_ID]) == ("ml", RUN)
    assert secret["stringData"] == {SECRET_KEY: f"{RUN}:{value}"}
    assert value not in to_json([item for item in objects if item is not secret])


@given(st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True))
def test_any_run_id_makes_a_name_that_kubernetes_takes(run_id: str) -> None:
    assert re.fullmatch(r"digits-run-[0-9a-f]{10}", secret_name("digits", run_id))
    assert secret_name("digits", run_id) != secret_name("digits", f"{run_id}0")


def test_a_secret_is_read_by_launchers_and_found_in_texts(tmp_path: pathlib.Path) -> None:
    value = secret_of(render(a_job(), RUN))["stringData"][SECRET_KEY]
    file = tmp_path / "run-secret"
    file.write_text(value)
    file.chmod(0o400)
    assert not read_run_secret(str(file), RUN).is_published
    assert redact_text(f"cat: {value}") == f"cat: {RUN}:{HIDDEN}"
