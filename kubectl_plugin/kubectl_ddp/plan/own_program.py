"""What a job of the reference trainer says about its model and its steps: the words after ``train``.

Only its GPT has a shape to plan with. Defaults are the trainer's own; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Optimizer, Precision, Work

_SWITCH: Final = "--activation-checkpointing"
_DEFAULTS: Final[Mapping[str, str]] = {
    "--model": "gpt",
    "--window": "128",
    "--global-batch": "64",
    "--precision": "fp32",
    "--optimizer": "adamw",
}
_GPT: Final[Mapping[str, int]] = {"layers": 4, "heads": 4, "width": 128}
_BYTES: Final = 256
"""The vocabulary of the task ``text``."""


def said(args: Sequence[str]) -> tuple[Shape, Work]:
    """The model and the step that ``ddp_trainer train`` would make of these words. Raises UsageError."""
    words = dict(_DEFAULTS)
    taken = iter(args)
    for word in taken:
        flag, equals, value = word.partition("=")
        if flag in {*_DEFAULTS, "--task", "--micro-batch"}:
            words[flag] = value if equals else next(taken, "")
    if words.get("--task") != "text":
        raise UsageError(
            "The job does not train the task 'text', whose GPT is the model that a plan can be read from.",
            hint="Say the model with --params, --model or --layers, --hidden and --heads.",
        )
    shape = _gpt(words["--model"], _whole("--window", words["--window"]))
    micro = words.get("--micro-batch")
    work = Work(
        sequence=shape.window,
        global_batch=_whole("--global-batch", words["--global-batch"]),
        precision=_precision(words["--precision"]),
        optimizer=Optimizer(words["--optimizer"]) if words["--optimizer"] in set(Optimizer) else Optimizer.ADAMW,
        micro_batch=None if micro is None else _whole("--micro-batch", micro),
        is_checkpointed=_SWITCH in args,
    )
    return shape, work


def _precision(word: str) -> Precision:
    return Precision.BF16 if word in {"bf16", "fp16"} else Precision.FP32


def _gpt(model: str, window: int) -> Shape:
    name, _, text = model.partition(":")
    if name != "gpt":
        raise UsageError(
            f"The job's --model is '{model}', and a plan can be read from a gpt alone.",
            hint="Say the model with --params, --model or --layers, --hidden and --heads.",
        )
    options = {**_GPT}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key in options:
            options[key] = _whole(f"--model {model}: {key}", value)
    return Shape(
        layers=options["layers"],
        hidden=options["width"],
        heads=options["heads"],
        vocabulary=_BYTES,
        window=window,
    )


def _whole(what: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise UsageError(f"{what} of the job is '{text}', which is no whole number.", hint="Write it as '64'.")
    return int(text)
