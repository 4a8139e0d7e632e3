"""A job and its fabric: chosen, filled in, contradicted, refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.fabric import object_entries, value_origins
from kubectl_ddp.spec.job_key import Given, Origin, OriginKind
from kubectl_ddp.spec.notes import spec_notes
from kubectl_ddp.spec.resolve import DefaultingContext, Resolved, resolve
from kubectl_ddp.spec.serialization import spec_from_dict, spec_to_dict
from kubectl_ddp.values.pod import Rdma

MACHINE = "nodeSelector.node.kubernetes.io/instance-type"
ON_GPUS = {"module": "a", "gpus": "8", "nnodes": "2:4"}


def resolved(*, image: str = "a:1", **text: Any) -> Resolved:
    layer = {key.replace("__", "."): Given(value, Origin(OriginKind.FLAG, f"--{key}")) for key, value in text.items()}
    return resolve([layer], DefaultingContext(image=image))


def on(fabric: str, **text: Any) -> Resolved:
    return resolved(**ON_GPUS, fabric=fabric, **text)


def doubts(found: Resolved) -> list[str]:
    return [str(warning) for warning in found.warnings]


def test_a_fabric_fills_in_what_nobody_has_said_and_says_why() -> None:
    found = on("ib", rdma="rdma/ib=8")
    assert found.spec.env["NCCL_NET"] == "IB"
    origin = str(found.origins["env.NCCL_NET"])
    assert origin.startswith("fabric ib: requires RDMA: without it, NCCL fails at the start")
    assert origin.endswith("env.html#nccl-net)")
    assert doubts(found) == []


@pytest.mark.parametrize("keys", [{}, {"fabric": "auto"}])
def test_the_fabric_is_chosen_by_the_machine_and_brings_its_devices(keys: dict[str, str]) -> None:
    found = resolved(**ON_GPUS, **{MACHINE: "p5.48xlarge"}, **keys)
    assert (found.spec.fabric, found.spec.rdma) == ("aws-efa", Rdma("vpc.amazonaws.com/efa", 32))
    assert str(found.origins["fabric"]) == "rule nodeSelector: the network of p5.48xlarge"
    assert [(entry.key, entry.value) for entry in object_entries(found.spec)] == [("resource.hugepages-2Mi", "5120Mi")]
    assert doubts(found) == []


def test_a_job_on_cpu_or_on_one_node_gets_nothing() -> None:
    for text, name in (({"nproc": "2"}, "gloo-cpu"), ({"gpus": "8"}, "single-node-nvlink")):
        found = resolved(module="a", **text)
        assert found.spec.fabric == name
        assert OriginKind.FABRIC not in {origin.kind for origin in found.origins.values()}
        assert object_entries(found.spec) == []


def test_where_nothing_tells_nothing_is_set_and_a_note_says_so() -> None:
    found = resolved(**ON_GPUS)
    assert (found.spec.fabric, "NCCL_NET" in found.spec.env) == ("none", False)
    assert any("--fabric names it" in note for note in spec_notes(found.spec))


def test_the_users_variable_wins_and_the_warning_names_both() -> None:
    found = on("ib", rdma="rdma/ib=8", env__NCCL_NET="Socket")
    assert found.spec.env["NCCL_NET"] == "Socket"
    [doubt] = doubts(found)
    assert doubt.startswith("env.NCCL_NET is 'Socket', and the fabric ib says 'IB': requires RDMA")
    assert doubt.endswith("Yours is taken; leave it out, or say --fabric none.")


def test_fewer_devices_than_the_machine_has_are_warned_of() -> None:
    found = on("aws-efa", rdma="vpc.amazonaws.com/efa=16", **{MACHINE: "p5.48xlarge"})
    assert found.spec.rdma == Rdma("vpc.amazonaws.com/efa", 16)
    [doubt] = doubts(found)
    assert "'vpc.amazonaws.com/efa=16', and the fabric aws-efa says 'vpc.amazonaws.com/efa=32'" in doubt


@pytest.mark.parametrize(("fabric", "keys", "words"), [
    ("ib", {"env__NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 contradicts the fabric ib: it disables"),
    ("roce", {"env__NCCL_IB_GID_INDEX": "3"}, "the index differs from pod to pod"),
    ("ib", {"env__NCCL_SOCKET_IFNAME": "ib0"}, "only where IPoIB is routed"),
    ("ib", {"secretEnv__NCCL_IB_TC": "s:k"}, "NCCL_IB_TC contradicts the fabric ib"),
    ("tcp", {"env__NCCL_IB_HCA": "mlx5"}, "sockets use no InfiniBand devices"),
])  # fmt: skip
def test_what_contradicts_a_fabric_is_warned_of(fabric: str, keys: dict[str, str], words: str) -> None:
    [doubt] = doubts(on(fabric, **({} if fabric == "tcp" else {"rdma": "rdma/ib=8"}), **keys))
    assert words in doubt


def test_a_variable_kept_in_a_secret_is_not_given_twice() -> None:
    found = on("ib", rdma="rdma/ib=8", secretEnv__NCCL_NET="s:k")
    assert "NCCL_NET" not in found.spec.env


def test_a_plain_value_of_a_refused_variable_is_none_of_its_business() -> None:
    assert doubts(on("ib", rdma="rdma/ib=8", env__NCCL_SOCKET_IFNAME="=eth0")) == []


@pytest.mark.parametrize(("keys", "sentence"), [
    ({"fabric": "ib"}, r"The fabric ib needs RDMA devices, and the job requests none\. Say --rdma rdma/NAME=COUNT"),
    ({"fabric": "aws-efa"}, r"Say --rdma vpc\.amazonaws\.com/efa=COUNT\. vpc.*=32 on p5\.48xlarge"),
    ({"fabric": "aws-efa", "rdma": "rdma/ib"}, "'rdma/ib', which is not a device of the fabric aws-efa"),
    ({"fabric": "gloo-cpu"}, "is for jobs without GPUs, and this one requests 8 per node"),
    ({"fabric": "single-node-nvlink"}, "ends at one machine, and the job may have 4 nodes"),
    ({"fabric": "tcp", "gpus": "0"}, "The fabric tcp connects GPUs, and the job requests none"),
    ({"fabric": "aws"}, "--fabric: 'aws' is not a fabric"),
    ({"fabric": "ib+roce"}, "names ib and roce, and the nodes of a job have one of them"),
])  # fmt: skip
def test_a_fabric_that_cannot_be_is_refused(keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(**ON_GPUS | keys)
    assert re.search(sentence, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(("fabric", "keys", "words"), [
    ("gcp-tcpx", {}, "must add the container tcpx-daemon (NET_ADMIN;"),
    ("gcp-tcpxo", {}, "in a namespace that Pod Security does not hold to 'restricted'"),
    ("gcp-gib", {}, "gIB must be at /usr/local/gib"),
    ("oci-roce", {"rdma": "nvidia.com/rdma-vf=16"}, "Oracle's own recipe runs privileged"),
    ("azure-ib", {}, "Without the machine's topology file"),
])  # fmt: skip
def test_what_the_cluster_must_add_is_said_at_every_submission(fabric: str, keys: dict[str, str], words: str) -> None:
    [doubt] = doubts(on(fabric, **keys))
    assert words in doubt
    assert any(words in note for note in spec_notes(on(fabric, **keys).spec))


def test_a_need_that_the_job_meets_is_not_told() -> None:
    assert doubts(on("azure-ib", env__NCCL_TOPO_FILE="/topo/ndv5-topo.xml")) == []


def test_values_too_new_for_the_image_are_left_out_with_a_warning() -> None:
    found = on("coreweave-roce", rdma="rdma/roce=1", image="a:nccl2.18.5")
    assert "NCCL_IB_ADDR_RANGE" not in found.spec.env
    assert "sets NCCL_IB_ADDR_FAMILY from NCCL 2.21 on, and the image 'a:nccl2.18.5' says 2.18.5" in doubts(found)[0]
    assert on("roce", rdma="rdma/ib=1", image="a:nccl2.18.5").spec.env["NCCL_IB_GID_INDEX"] == "3"


def test_the_network_within_racks_and_the_one_between_them_go_together() -> None:
    found = on("gb200-mnnvl+aws-efa", **{MACHINE: "p6e-gb200.36xlarge"})
    assert found.spec.rdma == Rdma("vpc.amazonaws.com/efa", 4)
    assert [str(wish) for wish in found.spec.topology] == ["pack=nvidia.com/gpu.clique"]
    assert [str(wish) for wish in on("gb200-mnnvl").spec.topology] == ["pack=nvidia.com/gpu.clique:required"]


def test_additions_are_explained_as_the_values_of_the_job_are() -> None:
    rows = {key: (value, str(origin)) for key, value, origin in value_origins(on("gb200-mnnvl").spec)}
    value, origin = rows["computeDomain"]
    assert value == "0"
    assert origin.startswith("fabric gb200-mnnvl: gives every pod a channel")
    assert origin.endswith("(api/nvidia.com/resource/v1beta1))")


@pytest.mark.parametrize("fabric", ["none", "ib", "gb200-mnnvl"])
def test_a_job_with_a_fabric_can_be_written_and_read_again(fabric: str) -> None:
    spec = on(fabric, rdma="rdma/ib=8", networks=["rdma-vf", "net/rail-0@net1"]).spec
    assert spec_from_dict(spec_to_dict(spec)) == spec
    assert spec_from_dict({key: value for key, value in spec_to_dict(spec).items() if key != "fabric"}).fabric == "none"
