"""Recorded messages of CUDA, NCCL and the driver: their fault, and the reason that the launcher reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Exit, FailureReason
from ddp_trainer.common.gpu_faults import FaultKind, fault_in, is_out_of_gpu_memory, nccl_config_error
from ddp_trainer.launch import failures

SAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "samples" / "nccl_errors.json").read_text())
REASONS = dict.fromkeys(("refusal", "nothing"), FailureReason.PYTHON_EXCEPTION)
REASONS |= {"memory": FailureReason.GPU_OOM, "peer": FailureReason.COLLECTIVE_ERROR}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["message"][:60])
def test_each_recorded_message_has_the_fault_of_its_source_and_a_reason(sample: dict[str, Any]) -> None:
    message, kind = sample["message"], sample["is"]
    fault = fault_in(message)
    assert (fault.kind if fault else None) == (kind if kind in list(FaultKind) else None)
    assert is_out_of_gpu_memory(message) is (kind == "memory")
    assert (nccl_config_error(message) is not None) is (kind == "refusal")
    name = "DistBackendError: " if "NCCL error" in message else "" if "ValueError" in message else "AcceleratorError: "
    assert failures.reason_of(1, name + message, oom_killed=False) == REASONS.get(kind, FailureReason.GPU_FAULT)


def test_a_failed_gpu_is_the_cause_of_what_its_peers_report_and_configuration_is_no_lost_peer() -> None:
    assert FailureReason.GPU_FAULT not in failures.CONSEQUENCES
    assert failures.reason_of(int(Exit.GPU_FAULT), "", oom_killed=False) == FailureReason.GPU_FAULT
    refused = "BadConfig: Rank 1: NCCL finds no network 'IB'. Fix: use an image with it."
    assert failures.reason_of(2, refused, oom_killed=False) == FailureReason.PYTHON_EXCEPTION


def test_the_network_that_was_asked_for_is_named() -> None:
    unnamed = "NCCL error: ncclInvalidUsage\nLast error:\nFailed to initialize any NET plugin"
    assert nccl_config_error(unnamed, "AWS Libfabric").what == "finds no network 'AWS Libfabric'"
    named = nccl_config_error("NCCL ncclInvalidUsage\nLast error:\nError: network IB not found.")
    assert named.what == "finds no network 'IB'"
    assert "unset NCCL_NET" in named.fix


@pytest.mark.parametrize(
    "last", ["Duplicate GPU detected : rank 1 and rank 0", "Multiple Ranks are using the same GPU/Partition"]
)
def test_two_ranks_on_one_gpu_are_named_in_the_words_of_every_nccl(last: str) -> None:
    problem = nccl_config_error(f"NCCL ncclInvalidUsage\nLast error:\n{last}")
    assert problem.what.startswith("refuses two ranks on one GPU")
