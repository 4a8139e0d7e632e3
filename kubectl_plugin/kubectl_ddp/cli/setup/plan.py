"""Command ``kubectl ddp plan``."""

from __future__ import annotations

from typing import Any

import click

from ddp_trainer.common.enums import OptimizerName
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options


@click.command(cls=HelpfulCommand)
@click.option("-f", "--filename", "job_file", metavar="FILE", help="Job file that trains the GPT of the task text.")
@click.option("--params", metavar="N", help="Parameters, as in 7B or 124M; a usual shape is made of them.")
@click.option("--model", metavar="NAME", help="A model whose shape is known, as in gpt2-xl or llama3-8b.")
@click.option("--layers", type=int, metavar="N", help="Layers of the model, with --hidden and --heads.")
@click.option("--hidden", type=int, metavar="N", help="Hidden size (d_model).")
@click.option("--heads", type=int, metavar="N", help="Attention heads.")
@click.option("--kv-heads", type=int, metavar="N", help="Key/value heads, for grouped-query attention.")
@click.option("--ffn", type=int, metavar="N", help="Feed-forward size (default: 4 times --hidden).")
@click.option("--vocab", type=int, metavar="N", help="Vocabulary size (default: the model's, or 50257).")
@click.option("--seq", type=int, metavar="N", help="Sequence length (default: the job's, or 2048).")
@click.option("--global-batch", type=int, metavar="N", help="Samples per step over all GPUs (default: 8 per GPU).")
@click.option("--micro-batch", type=int, metavar="N", help="Samples per pass (default: the fastest that fit).")
@click.option("--precision", type=click.Choice(("bf16", "fp32")), help="Precision of the computation (default: bf16).")
@click.option(
    "--optimizer",
    type=click.Choice([*map(str, OptimizerName)]),
    help="Optimizer (default: adamw).",
)
@click.option(
    "--activation-checkpointing",
    type=click.Choice(("auto", "on", "off")),
    help="Recompute activations in the backward pass (default: where it saves time).",
)
@click.option("--recompute", metavar="WHAT", help="What to recompute: all, cheap, or N for every N-th block.")
@click.option("--gpu-type", metavar="TYPE", help="Type of GPU, as in H100, or as in a node's label.")
@click.option("--gpus", type=int, metavar="N", help="GPUs per node (default: the job's, or 8).")
@click.option("--nnodes", type=int, metavar="N", help="Nodes (default: the job's, or 1).")
@click.option("--network", type=float, metavar="GBPS", help="Gigabits per second between nodes, for each GPU.")
@click.option("--reserve", metavar="SIZE", help="Memory of each GPU to leave free (default: 4Gi).")
@click.option(
    "--efficiency",
    type=float,
    metavar="SHARE",
    help="Share of the peak FLOPS that a GPU reaches while it computes (default 0.6).",
)
@click.option("--all", "is_complete", is_flag=True, help="Show every layout, not the first of each kind.")
@shared_options("wide", "json", "yaml")
def plan(options: Options, /, *, is_complete: bool, **given: Any) -> None:
    """Compare the layouts of a model that fit a number of GPUs, the fastest first, without contacting a cluster.

    A layout is a value of --parallel: replicas of the model, shards, tensor parallelism, pipeline stages. For each, the
    table shows memory per GPU and step time, from published formulas and the vendor's figures; with -o wide also the
    parts of the memory, the traffic, MFU and pipeline bubble. Exit code 4 means that none fits.
    """
    from kubectl_ddp.cli.setup.plan_run import PlanOptions, print_plan  # noqa: PLC0415 - not needed for help and completion

    print_plan(options, PlanOptions(**given), is_complete=is_complete)
