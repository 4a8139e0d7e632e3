"""What a layout demands of the reference trainer's GPT: the chart refuses what the plugin does, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pytest

from kubectl_ddp.chart.keys import CHARTS_OWN
from kubectl_ddp.errors import DdpError
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.value_source import Given, Kind, Origin
from tests.support.helm import CHARTS, Helm

CHART: Final = CHARTS / "ddp-job"
SEED: Final = 5
SCENARIOS: Final = 32
SCHEDULES: Final = (*("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-v") * 2, "none")
MODELS: Final = (
    *("gpt", "gpt:heads=6,layers=8,width=96", "gpt:layers=12,dropout=0", "gpt:heads=3") * 3,
    "gpt:layers=x",
    "mlp",
)
LAYOUTS: Final = (
    *("pp=1:4,replicate=1:9", "pp=2,replicate=1:99", "tp=2,pp=1:8,replicate=1:9", "tp=1:2,replicate=1:99"),
    *("shard=1:2,pp=2:3,replicate=1:9", "pp=1:9", "tp=1:2,pp=2,replicate=1:99"),
)


def words(random: Random) -> Iterator[str | int]:
    """Of a trainer that learns text, most of which some layout does not go with."""
    yield from ("train", "--task", random.choice(["text"] * 5 + ["digits"]))
    if random.random() < 0.7:
        yield from ("--model", random.choice(MODELS))
    if random.random() < 0.7:
        yield f"--pipeline-schedule={random.choice(SCHEDULES)}"
    for flag, sizes in (("--global-batch", (8, 17, 12)), ("--micro-batch", (1, 3, 4, 8)), ("--batch-slices", (8, 5))):
        if random.random() < 0.4:
            yield from (flag, random.choice(sizes))
    yield from random.choice([(), (), (), ("--parallel", "replicate=4"), ("--batch-slices",), ("--micro-batch=2",)])


def scenario(number: int) -> dict[str, Any]:
    """Values of one release; the same for the same number."""
    random = Random(f"{SEED}/{number}")
    nnodes, nproc = random.choice([(1, 4), ("1:2", 4), (4, 2), ("2:4", 6), (3, 2)])
    layout = random.choice(LAYOUTS)
    return {"module": "ddp_trainer", "args": [*words(random)], "nnodes": nnodes, "nproc": nproc, "parallel": layout}


def refusal(values: dict[str, Any]) -> str:
    """The plugin's sentence; empty where it takes them."""
    said = {"name": "run"} | {key: value for key, value in values.items() if key not in CHARTS_OWN}
    layer = {key: Given(value, Origin(Kind.FILE, "values")) for key, value in said.items()}
    try:
        resolve([layer], DefaultingContext(image="trainer:1"))
    except DdpError as error:
        return f"{error.message} {error.hint}"
    return ""


def test_the_chart_refuses_what_the_plugin_does_in_its_words(each_helm: Helm) -> None:
    for number in range(each_helm.major % 2, SCENARIOS, 2):  # each Helm renders its half
        values = scenario(number)
        wanted = refusal(values)
        done = each_helm.render(CHART, values, release="run", kubernetes="1.34.0")
        assert bool(done.code) is bool(wanted), f"{values}\n{wanted}\n{done.err}"
        assert wanted in " ".join(done.err.split("\n")), f"{values}\n{wanted}\n{done.err}"


def test_the_scenarios_reach_every_sentence_and_are_often_sound() -> None:
    said = [refusal(scenario(number)) for number in range(SCENARIOS)]
    assert 6 <= said.count("") <= SCENARIOS - 6
    for words in ("model's layers", "model's number of heads", "With ", "needs at least", "in equal rounds"):
        assert any(words in each for each in said), words


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("--model gpt:heads=3,width=96", "The model's number of heads is 3, which tp=2 ranks cannot share evenly."),
        ("--model=gpt:layers=1", "The model's layers are 1, which cannot fill 2 stages of a pipeline."),
        ("--model gpt:layers=3 --pipeline-schedule interleaved", "layers are 3, which cannot fill 4 stages"),
        ("--global-batch 4 --micro-batch 4", "1f1b needs at least 2 micro-batches for 2 stages, and a step has 1."),
        (
            "--global-batch 5 --micro-batch 1 --pipeline-schedule interleaved",
            "takes micro-batches in equal rounds over 2 ranks, and a step has 5.",
        ),
    ],
)
def test_each_is_a_sentence_of_chart_and_plugin(helm: Helm, args: str, sentence: str) -> None:
    layout: dict[str, Any] = {"nproc": 4, "parallel": "tp=2,pp=2"}
    values = {"module": "ddp_trainer", "args": ["train", "--task", "text", *args.split()], **layout}
    assert sentence in refusal(values)
    assert refusal(values) in " ".join(helm.error_response(CHART, values, release="run", kubernetes="1.34.0").split())


@pytest.mark.parametrize(
    ("parallel", "args", "sentence"),
    [
        ("shard=4", "--strategy=manual", "--strategy manual does not go with --parallel shard=4: the layout says"),
        ("replicate=2,shard=2", "--level exact", "--level exact does not go with --parallel replicate=2,shard=2:"),
        ("shard=2,pp=2", "--no-fsdp-reshard", "--no-fsdp-reshard does not go with --parallel shard=2,pp=2: stages"),
        ("tp=4", "--recompute cheap --activation-checkpointing --compile", "--recompute cheap does not go with --com"),
        (None, "--fsdp-prefetch 2", "--fsdp-prefetch is of --parallel shard=N, and --parallel is not given."),
        ("shard=4", "--parallel tp=4", "The job has --parallel shard=4, and its program --parallel tp=4. Keep one."),
        ("shard=4", "--parallel 4", "--parallel of the program: '4' is no layout; write dimension=size with commas"),
        ("shard=4,tp=1", "--parallel=tp=1,shard=4 --level exact", "--level exact does not go with --parallel shard=4:"),
        (None, "--parallel tp=4 --level exact", ""),
        ("pp=4", "--pipeline-schedule 2f2b", "The trainer has no --pipeline-schedule '2f2b'. Give gpipe, 1f1b, "),
        (None, "--precision=fp64", "The trainer has no --precision 'fp64'. Give fp32, tf32, bf16 or fp16."),
        ("shard=4", "--no-fsdp-reshard --fsdp-reshard --strategy ddp --fsdp-prefetch 0", ""),
    ],
)
def test_options_that_do_not_go_with_a_layout_are_refused_alike(
    helm: Helm, parallel: str | None, args: str, sentence: str
) -> None:
    layout: dict[str, Any] = {"nproc": 4} if parallel is None else {"nproc": 4, "parallel": parallel}
    values = {"module": "ddp_trainer", "args": ["train", "--task", "text", *args.split()], **layout}
    assert sentence in refusal(values)
    done = helm.render(CHART, values, release="run", kubernetes="1.34.0")
    assert bool(done.code) is bool(sentence)
    assert refusal(values) in " ".join(done.err.split())


def test_a_chart_makes_no_plan(helm: Helm) -> None:
    said = helm.error_response(CHART, {"module": "ddp_trainer", "parallel": "auto"}, release="run", kubernetes="1.34.0")
    assert "parallel: 'auto' asks for a plan, which 'kubectl ddp submit' makes and a chart cannot." in " ".join(
        said.split()
    )
