"""``podTemplate`` reaches the workers' pods of every engine, and what the job needs stays."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from kubectl_ddp.code.archive import ARCHIVE, Code
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, render
from tests.support.jobs import a_job
from tests.support.rendered import RUN, templates

PATCH: Any = yaml.safe_load("""
metadata: {labels: {mesh: blue}, annotations: {karpenter.sh/do-not-disrupt: "false"}}
spec:
  automountServiceAccountToken: true
  dnsConfig: {options: [{name: ndots, value: "2"}]}
  hostAliases: [{ip: 10.0.0.7, hostnames: [data]}]
  volumes: [{name: nfs, nfs: {server: files.example.com, path: /export}}]
  initContainers: [{name: proxy, image: "proxy:1", restartPolicy: Always}]
  containers:
  - name: worker
    env: [{name: A, value: b}]
    volumeMounts: [{name: nfs, mountPath: /data}]
    resources: {limits: {ephemeral-storage: 1Gi}}
""")


def rendered(patch: Any, *, engine: Engine = Engine.JOB, site: Site = Site.CLUSTER, **changes: Any) -> list[Object]:
    spec = a_job(pod_template=patch, engine=engine, **changes)
    return templates(render(spec, RUN, site=site, code=Code(ARCHIVE, "", files=1)))


def worker(patch: Any, **changes: Any) -> Object:
    return next(item for item in rendered(patch, **changes) if item["metadata"]["labels"]["ddp.dev/role"] == "worker")


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_patch_reaches_the_workers_of_every_engine_and_not_the_store(engine: Engine) -> None:
    plain, found = worker(None, engine=engine), worker(copy.deepcopy(PATCH), engine=engine)
    assert found["metadata"]["labels"] == plain["metadata"]["labels"] | {"mesh": "blue"}
    assert found["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"
    spec, [own] = found["spec"], found["spec"]["containers"]
    assert [item["name"] for item in spec["initContainers"]] == ["unpack-code", "proxy"]
    assert spec["volumes"] == [*plain["spec"]["volumes"], *PATCH["spec"]["volumes"]]
    assert spec["automountServiceAccountToken"]
    [before] = plain["spec"]["containers"]
    assert own["env"] == [*before["env"], {"name": "A", "value": "b"}]
    assert own["volumeMounts"] == [*before["volumeMounts"], {"name": "nfs", "mountPath": "/data"}]
    assert own["resources"]["limits"] == before["resources"]["limits"] | {"ephemeral-storage": "1Gi"}
    assert own["name"] == ENGINES[engine].container
    [store] = [item for item in rendered(PATCH, engine=engine) if item["metadata"]["labels"]["ddp.dev/role"] == "store"]
    assert "hostAliases" not in store["spec"]


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ("spec: null", "spec."),
        ("metadata: null", "metadata.labels[ddp.dev/job]"),
        ("metadata: {labels: {ddp.dev/role: store}}", "metadata.labels[ddp.dev/role]"),
        ("spec: {terminationGracePeriodSeconds: 5}", "GracePeriodSeconds, which the job needs. Set grace"),
        ("spec: {initContainers: [{name: unpack-code, $patch: delete}]}", "spec.initContainers[unpack-code]"),
        ("spec: {volumes: [{name: run, $patch: delete}]}", "spec.volumes[run]"),
        ("spec: {volumes: [{name: shm, emptyDir: {sizeLimit: 1Gi}}]}", "spec.volumes[shm]"),
        ("spec: {volumes: [{$patch: replace}]}", "spec.volumes["),
        ("spec: {containers: [{name: worker, $patch: delete}]}", "spec.containers[worker]"),
        ("spec: {containers: [{$patch: replace}, {name: x}]}", "spec.containers[worker]"),
        ("spec: {containers: [{name: worker, command: [sh]}]}", "spec.containers[worker].command"),
        ("spec: {containers: [{name: worker, image: x}]}", "[worker].image, which the job needs. Set image"),
        ("spec: {containers: [{name: worker, env: null}]}", "spec.containers[worker].env[DDP_JOB]"),
        ("spec: {containers: [{name: worker, env: [{name: DDP_RUN_ID, value: x}]}]}", "env[DDP_RUN_ID]"),
        ("spec: {containers: [{name: worker, ports: [{containerPort: 9464, $patch: delete}]}]}", "ports[9464]"),
        ("spec: {containers: [{name: worker, volumeMounts: [{mountPath: /tmp, readOnly: true}]}]}", "Mounts[/tmp]"),
        ("spec: {containers: [{name: worker, resources: {limits: {memory: 1Gi}}}]}", "resources.limits[memory]"),
    ],
)
def test_what_the_job_needs_cannot_be_removed_or_changed(patch: str, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        worker(yaml.safe_load(patch))
    message = str(caught.value)
    assert message.startswith("podTemplate removes or changes ")
    assert field in message


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ("spec: {containers: [{name: proxy, image: x}]}", "adds the container 'proxy' to spec.containers, which"),
        ("spec: 5", "podTemplate.spec is '5', not a map."),
        ("metadata: {labels: x}", "podTemplate.metadata.labels is 'x', not a map."),
        ("metadata: {$patch: replace, labels: x}", "podTemplate removes or changes metadata.labels["),
        ("spec: {$patch: replace, containers: [5]}", "podTemplate.spec.containers[0] has no name."),
        ("spec: {containers: [{name: worker, resources: {limits: 5}}]}", "resources.limits is '5', not a map."),
        ("spec: {containers: [{name: worker, env: [{name: RANK, value: '0'}]}]}", "RANK is set by the launcher"),
        ("spec: {containers: [{name: worker, env: [{name: PET_NNODES, value: '1'}]}]}", "Set nnodes instead."),
        ("spec: {containers: [{name: worker, volumeMounts: [{name: x, mountPath: /dev/shm/x}]}]}", "the way of /dev"),
        ("spec: {hostNetwork: true}", "the node's network and dnsPolicy ClusterFirst, so they cannot resolve"),
        ("spec: {hostNetwork: true, dnsPolicy: Default}", "dnsPolicy Default, so they cannot resolve the Service"),
        ("spec: {dnsPolicy: Default}", "Set dnsPolicy: ClusterFirst."),
    ],
)
def test_additions_that_would_break_the_job_are_refused(patch: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        worker(yaml.safe_load(patch))


def test_pods_on_the_network_of_their_node_keep_the_resolver_of_the_cluster() -> None:
    found = worker({"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}})
    assert found["spec"]["hostNetwork"]


def test_variables_and_labels_that_the_user_has_set_can_be_patched() -> None:
    new = "{metadata: {labels: {team: b}}, spec: {containers: [{name: pytorch, env: [{name: A, value: new}]}]}}"
    found = worker(yaml.safe_load(new), env={"A": "old"}, labels={"team": "a"})
    assert found["metadata"]["labels"]["team"] == "b"
    assert {"name": "A", "value": "new"} in found["spec"]["containers"][0]["env"]


def test_on_this_machine_a_patch_sets_variables() -> None:
    found = worker(PATCH, site=Site.LOCAL)["spec"]
    assert {"name": "A", "value": "b"} in found["containers"][0]["env"]
    assert "hostAliases" not in found
