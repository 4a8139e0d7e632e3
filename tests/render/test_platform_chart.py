"""``charts/ddp-platform`` as a whole: what Helm makes of it, and of values that are wrong."""

from __future__ import annotations

import pytest

from tests.helm import CHARTS, Helm

PLATFORM = CHARTS / "ddp-platform"


def test_lint_finds_nothing(each_helm: Helm) -> None:
    done = each_helm.run("lint", "--strict", str(PLATFORM), "--kube-version", "1.34.0")
    assert done.code == 0, done.out + done.err
    assert "WARNING" not in done.out


def test_both_helms_render_the_same(each_helm: Helm, helm: Helm) -> None:
    assert each_helm.template(PLATFORM) == helm.template(PLATFORM)


@pytest.mark.parametrize("kubernetes", ["1.31.0", "1.36.2", "1.33.4-gke.100"])
def test_it_is_for_every_supported_kubernetes(helm: Helm, kubernetes: str) -> None:
    assert helm.template(PLATFORM, kubernetes=kubernetes)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    assert "requires kubeVersion: >=1.31.0-0" in helm.refusal(PLATFORM, kubernetes="1.30.9")
