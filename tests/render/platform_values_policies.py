"""Effect of the values of ddp-platform's admission policies, a row per key."""

from __future__ import annotations

from typing import Final

from tests.support.chart_values import ABSENT, Row
from tests.support.policy_cases import DIGEST, OTHER_RULES, RULES, name_of

_ISSUER: Final = "https://oidc.example.com/id/1"
_PINNED: Final = {"image": {"digest": DIGEST.partition("@")[2]}}
_POLICY: Final = "ValidatingAdmissionPolicy"
_AUDIENCES: Final = f"{_POLICY}/ddp-api-token spec.variables.4.expression"


def _rows(rule: str) -> tuple[Row, ...]:
    """Rows of one rule: its action in the binding, and no policy where it is off."""
    actions, key = f"{_POLICY}Binding/{name_of(rule)} spec.validationActions", f"policies.{rule}"
    denied = {"policies": {rule: "Deny"}, **_PINNED}
    return (
        Row(key, "Audit", actions, ["Audit"], given=_PINNED),
        Row(key, "Off", f"{_POLICY}/{name_of(rule)}", ABSENT, given=denied),
    )


ROWS: Final = (
    *(row for rule in (*RULES, *OTHER_RULES) for row in _rows(rule)),
    Row("policies.apiAudiences", [_ISSUER], _AUDIENCES, f'["","{_ISSUER}"]', given=_PINNED),
)
