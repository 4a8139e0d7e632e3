"""Arguments of a job that runs the reference trainer: options, model, constraints, and the place of its checkpoints.

Checkpoints lie in the pods, on a volume, or in an object store that the arguments name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from ddp_trainer.common.constants import STORE_CLIENTS, CheckpointScope, Env
from ddp_trainer.common.parallel_dims import Layout, LayoutRange
from ddp_trainer.common.trainer_options import (
    CLASHES,
    SCHEDULES,
    WITHOUT_SHARD,
    OptionCondition,
    ValueOf,
    Violation,
    count_batch_slices,
    find_conflicts,
    flag_violations,
    micro_batch_size,
    of_micro_batches,
    of_slices,
    of_stages,
    part_samples,
)
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.values.program import TRAINER, Module, Program

TASK: Final = "text"
MODEL: Final = "gpt"
SIZES: Final[Mapping[str, int]] = {"layers": 4, "heads": 4}
"""Sizes of a GPT without options."""
VOCABULARY: Final = 256
"""Vocabulary size: the task ``text`` trains on bytes."""
GLOBAL_BATCH: Final = 64
SCHEDULE: Final = "1f1b"
FLAGS: Final[Mapping[str, str]] = {
    "task": "--task",
    "model": "--model",
    "schedule": "--pipeline-schedule",
    "globalBatch": "--global-batch",
    "batchSlices": "--batch-slices",
    "microBatch": "--micro-batch",
}
"""Flags to read, by the name of what they set."""
POSITIVE_INTEGER: Final = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """Model and division of its steps."""

    layers: int
    heads: int
    global_batch: int
    batch_slices: int | None
    micro_batch: int | None
    schedule: str

    def layout_violations(self, layout: Layout, max_ranks: int) -> Iterator[Violation]:
        """Yield the reasons why the trainer would refuse the layout; ``max_ranks`` is the maximum of the job."""
        yield from of_slices(layout.tp, heads=self.heads, vocabulary=VOCABULARY)
        if layout.pp == 1:
            return
        yield from of_stages(layout.pp * SCHEDULES[self.schedule].stages_per_rank, layers=self.layers)
        for count in self._micro_batches(layout, max_ranks):
            yield from of_micro_batches(self.schedule, count, pp=layout.pp)

    def _micro_batches(self, layout: Layout, max_ranks: int) -> Iterator[int]:
        """Yield the number of micro-batches of each part of the batch."""
        parts = layout.data_size
        batch = self.global_batch
        slices = count_batch_slices(self.batch_slices, max_ranks=max_ranks, parts=parts, global_batch=batch)
        for part in range(parts if parts <= slices else 0):  # the trainer reports parts without a slice
            samples = part_samples(part, parts=parts, batch_slices=slices, global_batch=batch)
            yield -(-samples // max(1, micro_batch_size(samples, self.micro_batch, layout.pp)))


def runs_the_trainer(program: Program) -> bool:
    """Return True if the program is the reference trainer, so that its arguments can be parsed."""
    return isinstance(program, Module) and program.name.partition(".")[0] == TRAINER


def last_flag_value(args: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag, or None if it is not given.

    >>> last_flag_value(["--batch-slices", "4", "--batch-slices=8"], "--batch-slices")
    '8'
    """
    found = None
    for word, following in itertools.pairwise([*args, ""]):
        value = following if word == flag else word.removeprefix(f"{flag}=")
        if value != word:
            found = value
    return found


def option_value(args: Sequence[str], word: OptionCondition) -> str | None:
    """Return the last value of an option; empty for a switch, None if it is not given.

    >>> option_value(["--strategy", "ddp", "--strategy=manual"], OptionCondition("--strategy"))
    'manual'
    >>> switch = OptionCondition("--no-fsdp-reshard", is_switch=True)
    >>> option_value(["--no-fsdp-reshard", "--fsdp-reshard"], switch) is None
    True
    """
    if word.is_switch:
        either = (word.flag, word.flag.replace("--no-", "--", 1))
        return "" if next((argument for argument in reversed(args) if argument in either), None) == word.flag else None
    return last_flag_value(args, word.flag)


def option_violations(layouts: LayoutRange | None, options: ValueOf) -> Iterator[Violation]:
    """Yield the reasons why the trainer would refuse its options."""
    yield from find_conflicts(layouts, options, (*CLASHES, *WITHOUT_SHARD))


def invalid_options(args: Sequence[str]) -> Iterator[Violation]:
    """Yield the options that the trainer would refuse with any layout.

    >>> next(invalid_options(["--precision", "fp64"])).help
    'Give fp32, tf32, bf16 or fp16.'
    """
    yield from flag_violations(partial(last_flag_value, args))


def reference_model(program: Program, args: Sequence[str]) -> ReferenceModel | None:
    """Return the model of these arguments, or None for other or invalid models."""
    options = {key: last_flag_value(args, flag) for key, flag in FLAGS.items()}
    if not runs_the_trainer(program) or options["task"] != TASK:
        return None
    sizes, schedule = _sizes(options["model"] or MODEL), options["schedule"] or SCHEDULE
    counts = [options[key] for key in ("globalBatch", "batchSlices", "microBatch")]
    is_sound = all(count is None or POSITIVE_INTEGER.fullmatch(count) for count in counts)
    if sizes is None or schedule not in SCHEDULES or not is_sound:
        return None
    batch, batch_slices, micro_batch = (None if count is None else int(count) for count in counts)
    return ReferenceModel(
        layers=sizes["layers"],
        heads=sizes["heads"],
        global_batch=batch or GLOBAL_BATCH,
        batch_slices=batch_slices,
        micro_batch=micro_batch,
        schedule=schedule,
    )


def _sizes(model: str) -> Mapping[str, int] | None:
    name, _, text = model.partition(":")
    if name != MODEL:
        return None
    sizes = {**SIZES}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key in sizes:
            if not POSITIVE_INTEGER.fullmatch(value):
                return None
            sizes[key] = int(value)
    return sizes


_FLAG: Final = "--checkpoint-dir"


def object_store_url(args: Sequence[str]) -> str | None:
    """Return the URL of an object store in the trainer's option ``--checkpoint-dir``; None without one.

    >>> object_store_url(["--epochs", "2", "--checkpoint-dir=s3://bucket/run"])
    's3://bucket/run'
    """
    values = [value for flag, value in pairwise(args) if flag == _FLAG]
    values += [word.removeprefix(f"{_FLAG}=") for word in args if word.startswith(f"{_FLAG}=")]
    urls = [value for value in values if value.partition("://")[0] in STORE_CLIENTS and "://" in value]
    return urls[-1] if urls else None


def keeps_checkpoints_in_pods(job: Object) -> bool:
    """Return whether the progress of a job is lost if all its pods are deleted together."""
    spec = job_kinds.submitted_spec(job)
    if object_store_url(spec.get("args") or ()) is not None:
        return False
    template = job_kinds.at(job, job_kinds.engine_of(job).template)
    if not template:  # it is in the runtime
        return "checkpointClaim" not in spec
    containers = template["spec"]["containers"]
    variables = [variable for container in containers for variable in container.get("env") or ()]
    return {"name": str(Env.CHECKPOINT_SCOPE), "value": str(CheckpointScope.POD)} in variables
