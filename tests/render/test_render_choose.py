"""The kinds that a cluster serves decide the choices that a job leaves open, and change no other."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.render import choose
from kubectl_ddp.render.choose import GANG_KINDS, ClusterKinds, choose_engine, choose_gang, resolve_auto
from kubectl_ddp.render.metadata import NATIVE_VERSIONS
from kubectl_ddp.values.pod import RuntimeMount
from kubectl_ddp.values.program import Gang
from tests.support.jobs import a_job

PREFERENCE = tuple(engine for engine in Engine if engine is not Engine.AUTO)


def facts(*engines: Engine, gang: Gang | None = None, version: tuple[int, int] = (1, 36)) -> ClusterKinds:
    kinds = {(ENGINES[engine].api_version, ENGINES[engine].kind) for engine in (*engines, Engine.JOB)}
    kinds |= {kind for name, kind in GANG_KINDS if name is gang}
    return ClusterKinds("lab", version, frozenset(kinds))


@pytest.mark.parametrize("first", range(len(PREFERENCE)))
def test_the_first_engine_that_is_served_is_taken(first: int) -> None:
    assert choose_engine(Engine.AUTO, facts(*PREFERENCE[first:])) is PREFERENCE[first]


def test_an_engine_that_is_asked_for_is_taken_whatever_is_served() -> None:
    assert choose_engine(Engine.TRAINJOB, facts(Engine.PYTORCHJOB)) is Engine.TRAINJOB


def test_a_plain_job_needs_a_kubernetes_that_knows_when_it_is_done() -> None:
    assert choose_engine(Engine.AUTO, facts(version=(1, 31))) is Engine.JOB
    with pytest.raises(PreflightFailed, match=r"'lab' can run no job: .* Kubernetes 1\.30 is too old .*--local"):
        choose_engine(Engine.AUTO, facts(version=(1, 30)))
    assert choose_engine(Engine.AUTO, facts(Engine.JOBSET, version=(1, 30))) is Engine.JOBSET


@pytest.mark.parametrize("gang", [gang for gang, _ in GANG_KINDS])
def test_a_gang_is_whatever_the_cluster_has(gang: Gang) -> None:
    assert choose_gang(a_job(gang=Gang.AUTO), facts(gang=gang)) is gang


def test_a_queue_is_kueues_unless_another_gang_is_named() -> None:
    assert choose_gang(a_job(gang=Gang.AUTO, queue="q"), facts(gang=Gang.VOLCANO)) is Gang.KUEUE
    assert choose_gang(a_job(gang=Gang.VOLCANO, queue="q"), facts()) is Gang.VOLCANO
    assert choose_gang(a_job(), facts(gang=Gang.VOLCANO)) is Gang.NONE


def test_a_gang_that_nobody_makes_is_refused() -> None:
    with pytest.raises(PreflightFailed, match=r"cluster of context 'lab' has no gang scheduler.*--queue"):
        choose_gang(a_job(gang=Gang.AUTO), facts())


@pytest.mark.parametrize(
    ("served", "taken"),
    [(NATIVE_VERSIONS, "v1beta1"), (("v1alpha1", "v1alpha2"), "v1alpha2"), (("v1alpha3",), "v1alpha3")],
)
def test_the_native_gang_takes_the_newest_version_that_is_served_and_known(served: tuple[str, ...], taken: str) -> None:
    kinds = frozenset((f"scheduling.k8s.io/{version}", "Workload") for version in served)
    assert choose.native_version(a_job(gang=Gang.NATIVE), ClusterKinds("lab", (1, 36), kinds)) == taken


def test_a_native_gang_without_its_feature_gates_is_refused_with_their_names() -> None:
    missing = r"'lab' does not serve .*Workload.* GenericWorkload and GangScheduling are off.*--runtime-c"
    with pytest.raises(PreflightFailed, match=missing):
        choose_gang(a_job(gang=Gang.NATIVE, queue="team"), facts(gang=Gang.VOLCANO))


def test_the_native_gang_is_the_last_choice() -> None:
    served = facts(gang=Gang.KAI).kinds | facts(gang=Gang.NATIVE).kinds
    assert choose_gang(a_job(gang=Gang.AUTO), ClusterKinds("lab", (1, 36), served)) is Gang.KAI


def test_a_settled_job_leaves_nothing_open_and_is_otherwise_the_same() -> None:
    settled = resolve_auto(a_job(gang=Gang.AUTO), facts(Engine.JOBSET, gang=Gang.KAI))
    assert settled == a_job(engine=Engine.JOBSET, gang=Gang.KAI)
    assert choose.kinds_to_discover() >= facts(*PREFERENCE, gang=Gang.KAI).kinds


@pytest.mark.parametrize(
    ("version", "given", "chosen"),
    [
        ((1, 35), {}, None),
        ((1, 36), {"runtime_image": "r:1"}, RuntimeMount.IMAGE),
        ((1, 35), {"runtime_image": "r:1"}, RuntimeMount.COPY),
        ((1, 36), {"runtime_image": "r:1", "runtime_mount": RuntimeMount.COPY}, RuntimeMount.COPY),
    ],
)
def test_the_runtime_image_is_mounted_where_the_cluster_serves_image_volumes_and_else_copied(
    version: tuple[int, int], given: dict[str, Any], chosen: RuntimeMount | None
) -> None:
    assert resolve_auto(a_job(**given), facts(version=version)).runtime_mount is chosen
