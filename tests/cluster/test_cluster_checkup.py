"""``doctor`` on a real cluster."""

from __future__ import annotations

import yaml

from tests.cluster.live_cluster import Namespace, until

NAP = ("--nnodes", "1", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi", "--command", "true")


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
