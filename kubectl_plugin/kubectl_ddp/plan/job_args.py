"""Parser of model and step from the arguments of a reference trainer job (the words after ``train``).

Only the trainer's GPT has a shape to plan with. The defaults are the trainer's own; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.common.enums import OptimizerName
from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.recomputation import ALL, FLAG, NOTHING, WHAT, Recomputation
from kubectl_ddp.plan.reference_model import GLOBAL_BATCH, MODEL, SIZES, TASK, VOCABULARY, last_flag_value
from kubectl_ddp.plan.shape import MOST, Shape
from kubectl_ddp.plan.trainer_options import invalid_options
from kubectl_ddp.plan.work import MOST as MOST_OF_A_STEP
from kubectl_ddp.plan.work import Precision, Work

MICRO_BATCH: Final = "--micro-batch"
BATCH_SLICES: Final = "--batch-slices"
_DEFAULTS: Final[Mapping[str, str]] = {
    "--model": MODEL,
    "--window": "128",
    "--global-batch": str(GLOBAL_BATCH),
    "--precision": "fp32",
    "--optimizer": "adamw",
}
_GPT: Final[Mapping[str, int]] = {**SIZES, "width": 128}


class UnknownModel(UsageError):
    """Raised if the job does not train the trainer's GPT."""


def parse_job_args(args: Sequence[str]) -> tuple[Shape, Work]:
    """Return the model and the step that ``ddp_trainer train`` would use with these arguments.

    Raises:
        UsageError: If an argument is invalid or the model is not a GPT.
    """
    words = {
        flag: default if (word := last_flag_value(args, flag)) is None else word for flag, default in _DEFAULTS.items()
    }
    if last_flag_value(args, "--task") != TASK:
        raise UnknownModel(
            "The job does not train the task 'text', whose GPT is the model that a plan can be read from.",
            hint="Say the model with --params, --model or --layers, --hidden and --heads.",
        )
    for violation in invalid_options(args):
        raise UsageError(violation.message, hint=violation.help)
    shape = _gpt(words["--model"], _parse_int("--window", words["--window"]))
    micro, batch_slices = last_flag_value(args, MICRO_BATCH), last_flag_value(args, BATCH_SLICES)
    work = Work(
        sequence=shape.window,
        global_batch=_parse_int("--global-batch", words["--global-batch"]),
        precision=_precision(words["--precision"]),
        optimizer=OptimizerName(words["--optimizer"]),
        micro_batch=None if micro is None else _parse_int(MICRO_BATCH, micro),
        batch_slices=None if batch_slices is None else _parse_int(BATCH_SLICES, batch_slices),
        recomputation=parse_recompute(args),
    )
    return shape, work


def parse_recompute(args: Sequence[str]) -> Recomputation:
    """Return the recomputation that the arguments request.

    Raises:
        UsageError: If the value is invalid or the flag that enables it is missing.
    """
    what = Recomputation.parse(last_flag_value(args, WHAT) or ALL.flag_value)
    if what != ALL and FLAG not in args:
        raise UsageError(f"{WHAT} is {what.flag_value}, and nothing is computed again without {FLAG}.", hint="Add it.")
    return what if FLAG in args else NOTHING


def _precision(word: str) -> Precision:
    return Precision.BF16 if word in {"bf16", "fp16"} else Precision.FP32


def _gpt(model: str, window: int) -> Shape:
    name, _, text = model.partition(":")
    if name != MODEL:
        raise UnknownModel(
            f"The job's --model is '{model}', and a plan can be read from a gpt alone.",
            hint="Say the model with --params, --model or --layers, --hidden and --heads.",
        )
    options = {**_GPT}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key in options:
            options[key] = _parse_int(f"{key} in --model", value, MOST)
    if options["width"] % options["heads"]:
        raise UsageError(
            f"--model of the job is '{model}', whose width {options['width']} cannot be divided among "
            f"{options['heads']} heads.",
            hint="Give a width that is a multiple of the heads.",
        )
    return Shape(
        layers=options["layers"],
        hidden=options["width"],
        heads=options["heads"],
        vocabulary=VOCABULARY,
        window=window,
        cuts_vocabulary=True,
    )


def _parse_int(what: str, text: str, most: int = MOST_OF_A_STEP) -> int:
    is_whole = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not (is_whole and 1 <= int(text) <= most):
        raise UsageError(
            f"{what} of the job is '{text}', which is not a whole number from 1 to {most}.", hint="Write it as '64'."
        )
    return int(text)
