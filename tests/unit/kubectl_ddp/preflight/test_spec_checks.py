"""Checks of a job that need no cluster."""

from __future__ import annotations

from kubectl_ddp.preflight.chain import OF_THE_JOB, run_checks
from kubectl_ddp.util.finding import Severity
from tests.support.cluster_facts import a_subject, facts

WRONG = {"NCCL_PROTO": "LL128", "NCCL_SHM_DISABLE": "1"}


def test_variables_of_a_job_are_checked_with_rule_hint_and_source() -> None:
    found = {each.rule: each for each in run_checks(OF_THE_JOB, a_subject(env=WRONG), facts()) if each.rule}
    assert found["N33"].severity is Severity.ERROR
    assert "NCCL_PROTO=LL128" in found["N33"].message
    assert found["N33"].hint
    assert found["N33"].evidence[0].startswith("https://")
    assert found["N04"].severity is Severity.WARNING


def test_rules_that_the_job_leaves_out_are_not_applied() -> None:
    subject = a_subject(env={**WRONG, "DDP_LINT_IGNORE": "n33,N04"})
    assert not {"N33", "N04"} & {each.rule for each in run_checks(OF_THE_JOB, subject, facts())}
