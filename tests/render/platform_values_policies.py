"""Effect of the values of ddp-platform's admission policies, a row per key."""

from __future__ import annotations

from typing import Final

from tests.support.chart_values import ABSENT, Row
from tests.support.policy_cases import DIGEST, OTHER_RULES, RULES, name_of

_ISSUER: Final = "https://oidc.example.com/id/1"
_PINNED: Final = {"image": {"digest": DIGEST.partition("@")[2]}}
ROWS: Final = (
    *(
        Row(
            f"policies.{rule}",
            "Audit",
            f"ValidatingAdmissionPolicyBinding/{name_of(rule)} spec.validationActions",
            ["Audit"],
            given=_PINNED,
        )
        for rule in (*RULES, *OTHER_RULES)
    ),
    *(
        Row(
            f"policies.{rule}",
            "Off",
            f"ValidatingAdmissionPolicy/{name_of(rule)}",
            ABSENT,
            given={"policies": {rule: "Deny"}, **_PINNED},
        )
        for rule in (*RULES, *OTHER_RULES)
    ),
    Row(
        "policies.apiAudiences",
        [_ISSUER],
        "ValidatingAdmissionPolicy/ddp-api-token spec.variables.4.expression",
        f'["","{_ISSUER}"]',
        given=_PINNED,
    ),
)
