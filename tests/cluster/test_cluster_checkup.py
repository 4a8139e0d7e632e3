"""``bundle`` and ``doctor`` on a real cluster."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import yaml

from tests.cluster.live_cluster import Namespace, until

NAP = (
    *("--nnodes", "1", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi"),
    *("--env", "NCCL_DEBUG=kept", "--env", "NOTE=hidden-value", "--command", "echo password=correct-horse"),
)


def test_a_bundle_holds_what_a_colleague_needs_and_no_secret(space: Namespace, tmp_path: Path) -> None:
    space.ddp("submit", "--name", "nap", "--image", space.image, *NAP).ok()
    space.ddp("wait", "nap", "--for=complete", "--timeout", "120s").ok()
    path = tmp_path / "nap.tar.gz"
    done = space.ddp("bundle", "nap", "--file", str(path)).ok()
    assert done.out == f"{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert {"why.txt", "why.json", "status.txt", "status.json", "versions.json", "events.json"} <= files.keys()
    assert {"objects/job.json", "objects/pods/nap-worker-0.json", "logs/nap-worker-0.log"} <= files.keys()
    assert "around/nodes.json" in files
    assert json.loads(files["why.json"])["cause"] == "finished"
    assert json.loads(files["objects/job.json"])["metadata"]["name"] == "nap"
    assert space.image in files["versions.json"]
    everything = "\n".join(files.values())
    assert "correct-horse" not in everything
    assert "hidden-value" not in everything, "its name is not one that is known to be harmless"
    assert "kept" in everything


def test_a_doctor_finds_this_cluster_fit(space: Namespace) -> None:
    done = space.ddp("doctor", "-o", "json")
    found = {finding["subject"]: finding for finding in done.json["findings"]}
    assert done.code == 0, [finding for finding in found.values() if finding["severity"] == "error"]
    assert found["API server"]["severity"] == "ok"
    assert "Pod Security restricted" in found["namespace"]["message"]
    assert found["engine pytorchjob"]["severity"] == "ok"
    assert found["rights: run"]["severity"] == "ok"
    assert done.json["roles"] == []


def test_a_doctor_lists_every_right_that_is_missing_and_the_role_it_asks_for_is_enough(space: Namespace) -> None:
    kubeconfig = str(space.kubeconfig_of_nobody())
    done = space.ddp("doctor", "--kubeconfig", kubeconfig)
    assert done.code == 4
    assert "ERROR    rights: run" in done.out
    assert "create, delete, get, list, patch and watch pytorchjobs.kubeflow.org" in done.out
    made = [document for document in yaml.safe_load_all(done.out[done.out.index("# Missing rights") :]) if document]
    group = "rbac.authorization.k8s.io/v1"
    plurals = {"Role": "roles", "RoleBinding": "rolebindings"}
    for item in made:
        if item["metadata"].get("namespace") == space.name:  # the others are for all of the cluster
            space.api.create(space.path(group, plurals[item["kind"]]), item)
    until("the rights", lambda: space.ddp("doctor", "--kubeconfig", kubeconfig).code == 0)
    submitted = space.ddp("submit", "--name", "nap", "--image", space.image, "--kubeconfig", kubeconfig, *NAP).ok()
    assert "nap" in submitted.err
    space.ddp("delete", "nap", "--kubeconfig", kubeconfig, "--yes").ok()
