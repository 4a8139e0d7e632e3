"""Label selectors of ``-l``."""

from __future__ import annotations

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import parse_label_selector, selects

LABELS = {"team": "a", "stage": "test"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        *(("team=a", True), ("team==a", True), ("team=b", False), ("team!=a", False), ("other!=a", True)),
        *(("team = a , stage != prod", True), ("team in (a, b)", True), ("team in (b),stage", False)),
        *(("team notin (b,c),stage in (test)", True), ("team", True), ("other", False), ("!other", True)),
        ("!team", False),
    ],
)
def test_a_selector_matches_as_kubectls(text: str, fits: bool) -> None:
    assert selects(parse_label_selector(text), LABELS) is fits


@pytest.mark.parametrize("text", ["", "a=b=c", "a in b", "a,,b", "a in (b", "a > 1"])
def test_a_malformed_selector_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--selector"):
        parse_label_selector(text)
