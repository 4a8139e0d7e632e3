"""What we render is what our own rules about pods ask for."""

from __future__ import annotations

import pytest
from test_render_fabrics import ALL, ENGINES, RUN, job

from kubectl_ddp.lint.manifests import find_workloads, parse_manifest
from kubectl_ddp.lint.registry import check
from kubectl_ddp.render import render
from kubectl_ddp.render.text import to_json, to_yaml
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.values.engine import Engine

ONLY_THE_CLUSTER_KNOWS = {"K17", "K18", "K19", "K27"}
"""Infos: how the machines lie, who schedules, what the container runtime allows."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fabric", ALL)
def test_nothing_is_doubtful_in_what_is_rendered(fabric: str, engine: Engine) -> None:
    made = find_workloads(render(job(fabric, engine), RUN))
    assert {each.kind for each in made} >= {"Job"}
    assert max(each.count for each in made) == 4
    found = [finding for each in made for finding in check(each, with_variables=False)]
    assert not [str(finding) for finding in found if finding.severity is not Severity.INFO]
    assert {finding.rule for finding in found} <= ONLY_THE_CLUSTER_KNOWS


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closed_job_lets_its_pods_reach_one_another(engine: Engine) -> None:
    made = find_workloads(render(job("tcp", engine, egress="closed"), RUN))
    assert not [finding for each in made for finding in check(each) if finding.rule == "K14"]


@pytest.mark.parametrize("engine", ENGINES)
def test_objects_are_found_again_in_their_text(engine: Engine) -> None:
    objects = render(job("ib", engine), RUN)
    for text in (to_yaml(objects), to_json(objects)):
        again = find_workloads(parse_manifest("file", text))
        assert [(each.where, each.count) for each in again] == [
            (each.where, each.count) for each in find_workloads(objects)
        ]
