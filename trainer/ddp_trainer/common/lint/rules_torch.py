"""Lint rules for torch's variables and for resources that its processes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity, where
from ddp_trainer.common.lint.values import is_no, is_one, is_yes, number, split_list
from ddp_trainer.common.nccl_variables import (
    DESYNC_DEBUG,
    DISTRIBUTED_DEBUG,
    IGNORED_BY_NCCL2,
    USE_NCCL2,
    variables_against_survival,
)

_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_BUFFERS: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_SWITCHES: Final = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
_LEFT_ON: Final = ("TORCH_NCCL_NAN_CHECK", DESYNC_DEBUG, "PYTORCH_NO_CUDA_MEMORY_CACHING")
_LEAST_HEARTBEAT: Final = 60


_DEBUG_DETAIL: Final = Rule(
    when=where(lambda value: value.upper() == "DETAIL", DISTRIBUTED_DEBUG),
    id="T01",
    looks_for="`TORCH_DISTRIBUTED_DEBUG=DETAIL`",
    message="{name}={value} adds a second collective before every collective, to compare what the ranks do.",
    fix="Delete it when the mistake is found.",
    source=sources.TORCH_DISTRIBUTED,
)


@Rule(
    id="T02",
    looks_for="`TORCH_NCCL_ASYNC_ERROR_HANDLING` of 0, 1 or 2; with `DDP_SURVIVE_ON_NCCL=1`, any but 0, and "
    "`TORCH_DISTRIBUTED_DEBUG=DETAIL`, `TORCH_NCCL_DESYNC_DEBUG` and `TORCH_DIST_USE_NCCL2=1`, which undo it",
    message="{name}={value}: {detail}.",
    fix="Use torch's default; leave it out with DDP_SURVIVE_ON_NCCL=1.",
    source=sources.issue("pytorch/pytorch", 121055),
)
def _handling(environment: Environment, _: Facts) -> Iterator[Found]:
    told = number(environment.get(_HANDLING, ""))
    if is_yes(environment.get(Env.SURVIVE_ON_NCCL, "")):
        # Then the launcher's hang watch is the timeout. The trainer itself sets 0 where that watch kills ranks.
        if told:
            yield Found(_HANDLING, str(told), "torch ends a process that could outlive its group")
        for name in variables_against_survival(environment):
            yield Found(name, environment[name], "torch ends a process that could outlive its group")
        if is_yes(value := environment.get(USE_NCCL2, "")):
            yield Found(USE_NCCL2, value, "nccl2 refuses DDP_SURVIVE_ON_NCCL=1, and 0 selects the older backend")
    elif told in {0, 1, 2}:
        why = "a lost peer becomes an endless hang" if told == 0 else "the flight recorder's dump is lost"
        yield Found(_HANDLING, str(told), why)


_BLOCKING_WAIT: Final = Rule(
    when=where(is_yes, "TORCH_NCCL_BLOCKING_WAIT"),
    id="T04",
    looks_for="`TORCH_NCCL_BLOCKING_WAIT`",
    message="{name}={value} makes every wait block the process, so compute and communication no longer overlap.",
    source=sources.TORCH_NCCL,
)


@Rule(
    id="T05",
    looks_for="the flight recorder on, and no file for its dumps",
    message="{name}={value} records, and the dump goes to the home directory, which ends with the container.",
    fix="Set TORCH_FR_DUMP_TEMP_FILE to a place on a volume, such as /var/run/ddp/trace_.",
    source=sources.FLIGHT_RECORDER,
)
def _dump_in_container(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in _BUFFERS:
        if (number(environment.get(name, "")) or 0) > 0:
            if not any(environment.get(file) for file in _DUMP_FILES):
                yield Found(name, environment[name])
            return


_NO_EVIDENCE: Final = Rule(
    when=where(is_no, *_BUFFERS, *_DUMP_SWITCHES),
    id="T06",
    severity=Severity.INFO,
    looks_for="the flight recorder or its dump switched off",
    message="{name}={value}: a hang leaves no evidence.",
    fix="Set TORCH_FR_BUFFER_SIZE=2000, and leave the dump on.",
    source=sources.FLIGHT_RECORDER,
)


_SHORT_HEARTBEAT_TIMEOUT: Final = Rule(
    when=where(lambda value: number(value) in range(_LEAST_HEARTBEAT), "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    id="T07",
    looks_for="`TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` below 60",
    message="{name}={value} kills a process whose watchdog is merely held up for that long.",
    fix="Delete it: 480 is the default.",
    source=sources.TORCH_NCCL,
)


@Rule(
    id="T09",
    looks_for="`OMP_NUM_THREADS` beyond the cores",
    message="{name}={value} is too much for {detail}.",
    fix="Use the cores divided by the workers.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)
def _threads(environment: Environment, facts: Facts) -> Iterator[Found]:
    told = number(environment.get("OMP_NUM_THREADS", "").partition(",")[0])
    # One thread is the minimum, even on a node with less than one core.
    if told and told > 1 and facts.cpus and told * (facts.nproc or 1) > max(1, facts.cpus):
        yield Found("OMP_NUM_THREADS", str(told), f"{facts.nproc or 1} workers and {facts.cpus:g} cores")


_ONE_CONNECTION: Final = Rule(
    when=where(is_one, "CUDA_DEVICE_MAX_CONNECTIONS"),
    id="T11",
    looks_for="`CUDA_DEVICE_MAX_CONNECTIONS=1`",
    message="{name}={value} puts all streams in one queue; Megatron's tensor parallelism wants that, DDP and FSDP "
    "lose their overlap.",
    fix="Delete it where the job is not Megatron's.",
    source=sources.issue("pytorch/torchtitan", 1147),
)


_LAUNCH_BLOCKING: Final = Rule(
    when=where(is_one, "CUDA_LAUNCH_BLOCKING"),
    id="T12",
    looks_for="`CUDA_LAUNCH_BLOCKING=1`",
    message="{name}={value} waits for every kernel, and can lock up collectives on several streams.",
    fix="Delete it when the mistake is found.",
    source=sources.TORCH_CUDA,
)


_LAUNCHER_IN_WORKER: Final = Rule(
    when=where(lambda _: True, "LOCAL_RANK", given=lambda environment, _: "TORCHELASTIC_RUN_ID" in environment),
    id="T13",
    looks_for="a launcher that is started by a worker of another",
    message="{name}={value} is here already: another launcher's worker starts this one, and each of them would.",
    fix="Start one launcher per node.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)


@Rule(
    id="T14",
    looks_for="two files for the flight recorder's dumps",
    message="{name}={value} and {detail} name two places, and torch's version decides.",
    fix="Give both the same value.",
    source=sources.FLIGHT_RECORDER,
)
def _two_files(environment: Environment, _: Facts) -> Iterator[Found]:
    new, old = (environment.get(name) for name in _DUMP_FILES)
    if new and old and new != old:
        yield Found(_DUMP_FILES[0], new, f"{_DUMP_FILES[1]}={old}")


_MONITORING_DISABLED: Final = Rule(
    when=where(is_no, "TORCH_NCCL_ENABLE_MONITORING"),
    id="T15",
    looks_for="`TORCH_NCCL_ENABLE_MONITORING=0`",
    message="{name}={value}: a watchdog that is stuck is never noticed.",
    source=sources.TORCH_NCCL,
)


@Rule(
    id="T16",
    severity=Severity.INFO,
    looks_for="cores that no thread uses, since the launcher sets `OMP_NUM_THREADS=1`",
    message="{name} is not set, and the launcher makes it 1, as torchrun does.",
    fix="Set {name}={detail}, the cores of each worker, where it computes on the CPU.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)
def _one_thread(environment: Environment, facts: Facts) -> Iterator[Found]:
    share = int((facts.cpus or 0) // (facts.nproc or 1))
    if "OMP_NUM_THREADS" not in environment and (facts.nproc or 1) > 1 and share > 1:
        yield Found("OMP_NUM_THREADS", detail=str(share))


_UNKNOWN_DEBUG_LEVEL: Final = Rule(
    when=where(lambda value: value.upper() not in {"", "OFF", "INFO", "DETAIL"}, DISTRIBUTED_DEBUG),
    id="T20",
    severity=Severity.ERROR,
    looks_for="`TORCH_DISTRIBUTED_DEBUG` with another word than OFF, INFO, DETAIL",
    message="{name}={value} is refused by torch when the ranks meet.",
    fix="Use OFF or INFO, or delete it.",
    source=sources.TORCH_DISTRIBUTED,
)


@Rule(
    id="T21",
    severity=Severity.ERROR,
    looks_for="fewer devices in `CUDA_VISIBLE_DEVICES` than workers",
    message="{name}={value} has fewer devices than this node has workers ({detail}), and NCCL before 2.30 refuses "
    "two on one.",
    fix="Lower --nproc-per-node, or delete it. NCCL 2.30 and later lets ranks share a GPU with "
    "`NCCL_MULTI_RANK_GPU_ENABLE=1`.",
    source=sources.issue("NVIDIA/nccl", 1716),
)
def _not_enough_devices(environment: Environment, facts: Facts) -> Iterator[Found]:
    visible = split_list(environment.get("CUDA_VISIBLE_DEVICES", ""))
    if facts.nproc and visible and visible[0] != "-1" and len(visible) < facts.nproc:
        yield Found("CUDA_VISIBLE_DEVICES", ",".join(visible), f"{facts.nproc} workers")


_DEBUGGING_LEFT_ON: Final = Rule(
    when=where(is_yes, *_LEFT_ON),
    id="T22",
    looks_for="debugging switches of torch left on: `TORCH_NCCL_NAN_CHECK` and others",
    message="{name}={value} is a debugging switch that every step pays for.",
    fix="Delete it when the mistake is found.",
    source=sources.TORCH_NCCL,
)


_IGNORED_BY_NCCL2: Final = Rule(
    when=where(
        lambda value: value != "",
        *IGNORED_BY_NCCL2,
        given=lambda environment, _: is_yes(environment.get(USE_NCCL2, "")),
    ),
    id="T24",
    severity=Severity.INFO,
    looks_for="variables that nccl2 ignores, with `TORCH_DIST_USE_NCCL2=1`",
    message="{name}={value} has no effect on nccl2, which has no such part.",
    fix="Delete it, or set TORCH_DIST_USE_NCCL2=0.",
    source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp",
)
