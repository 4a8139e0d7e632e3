"""Command ``kubectl ddp plan``."""

from __future__ import annotations

from typing import Any

import click

from ddp_trainer.common.enums import OptimizerName
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options


@click.command()
@click.option("-f", "--filename", "job_file", metavar="FILE", help="Job file that trains the GPT of the task text.")
@click.option("--params", metavar="N", help="Parameters, as in 7B or 124M; a usual shape is made of them.")
@click.option("--model", metavar="NAME", help="A model whose shape is known, as in gpt2-xl or llama3-8b.")
@click.option("--layers", type=int, metavar="N", help="Layers of the model, with --hidden and --heads.")
@click.option("--hidden", type=int, metavar="N", help="Width of the stream.")
@click.option("--heads", type=int, metavar="N", help="Heads of attention.")
@click.option("--kv-heads", type=int, metavar="N", help="Heads of keys and values, where queries share them.")
@click.option("--ffn", type=int, metavar="N", help="Width of the perceptron's hidden layer; 4 times the stream's.")
@click.option("--vocab", type=int, metavar="N", help="Tokens that there are; 50257 unless the model says.")
@click.option("--seq", type=int, metavar="N", help="Tokens of a sample; 2048 unless the job says.")
@click.option("--global-batch", type=int, metavar="N", help="Samples of a step over all GPUs; 8 for each by default.")
@click.option("--micro-batch", type=int, metavar="N", help="Samples of one pass; the fastest that fit by default.")
@click.option("--precision", type=click.Choice(("bf16", "fp32")), help="Numbers to compute with; bf16 by default.")
@click.option(
    "--optimizer",
    type=click.Choice([*map(str, OptimizerName)]),
    help="What moves the weights; adamw by default.",
)
@click.option(
    "--activation-checkpointing",
    type=click.Choice(("auto", "on", "off")),
    help="Compute activations again in the backward pass; where it pays by default.",
)
@click.option("--recompute", metavar="WHAT", help="Of that all of each block, cheap, or N for every N-th block.")
@click.option("--gpu-type", metavar="TYPE", help="Kind of GPU, as in H100, or as a machine's label names it.")
@click.option("--gpus", type=int, metavar="N", help="GPUs per node; 8 unless the job says.")
@click.option("--nnodes", type=int, metavar="N", help="Nodes; 1 unless the job says.")
@click.option("--network", type=float, metavar="GBPS", help="Gigabits per second between nodes, for each GPU.")
@click.option("--reserve", metavar="SIZE", help="Memory of each GPU that training cannot have; 4Gi by default.")
@click.option(
    "--efficiency",
    type=float,
    metavar="SHARE",
    help="Share of the peak FLOPS that a GPU reaches while it computes (default 0.6).",
)
@click.option("--all", "is_complete", is_flag=True, help="Show every layout, not the first of each kind.")
@shared_options("json", "yaml")
def plan(options: Options, /, *, is_complete: bool, **given: Any) -> None:
    """Compare the layouts of a model that fit a number of GPUs, the fastest first, without contacting a cluster.

    A layout is a value of --parallel: replicas of the model, shards, tensor parallelism, pipeline stages. For each, the
    table shows memory per GPU, step time, MFU and pipeline bubble, from published formulas and the vendor's figures.
    Exit code 4 means that none fits.
    """
    from kubectl_ddp.cli.setup.plan_run import PlanOptions, print_plan  # noqa: PLC0415 - not needed for help and completion

    print_plan(options, PlanOptions(**given), is_complete=is_complete)
