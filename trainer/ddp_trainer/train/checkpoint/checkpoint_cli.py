"""Implementation of ``python -m ddp_trainer checkpoint (inspect|verify|export) DIR``.

Lists and verifies the checkpoints in a directory or an object store, and exports the weights of one. The entry point is
:func:`main`; it finds checkpoints through :mod:`ddp_trainer.train.checkpoint.object_checkpoints`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.common.constants import Exit
from ddp_trainer.net.arguments import ArgumentParser
from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CorruptCheckpoint, reason_of
from ddp_trainer.train.checkpoint.manifest import FORMAT, Manifest
from ddp_trainer.train.checkpoint.object_checkpoints import CheckpointInfo, list_checkpoints
from ddp_trainer.train.checkpoint.weights_io import export_weights
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.utils.errors import BadConfig, StorageError, TrainError
from ddp_trainer.train.utils.locations import parse_location


@dataclass(frozen=True, slots=True)
class Entry:
    """Result of examining one checkpoint."""

    listed: CheckpointInfo
    manifest: Manifest | None
    """The manifest, or None if it cannot be read."""
    trouble: str
    """Reason why the checkpoint is not valid; empty if it is."""
    contents: str = ""
    """Summary of the payload, for example "model (42 numbers in 2 tensors), step"."""

    def to_dict(self) -> dict[str, object]:
        """Return the entry for ``-o json``."""
        manifest = self.manifest
        return {
            "name": self.listed.name,
            "valid": not self.trouble,
            "reason": self.trouble or None,
            "step": self.listed.step,
            "epoch": None if manifest is None else manifest.epoch,
            "size_bytes": None if manifest is None else manifest.total_bytes,
            "world_size": None if manifest is None else manifest.world_size,
            "written_at": None if manifest is None else manifest.written_at,
            "metrics": None if manifest is None else manifest.metrics,
            "contents": self.contents,
        }


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Returns:
        Exit code: 0 on success. 1 if ``inspect`` or ``verify`` finds a damaged checkpoint or none at all. 2 for invalid
        arguments.
    """
    try:
        arguments = argument_parser().parse_args(list(argv))
        return {"inspect": _list_checkpoints, "verify": _list_checkpoints, "export": _export}[arguments.command](
            arguments
        )
    except TrainError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    refuse = partial(BadConfig, hint="See python -m ddp_trainer checkpoint --help.")
    parser = ArgumentParser(
        refuse, prog="python -m ddp_trainer checkpoint", description="Inspect, verify and export checkpoints."
    )
    parser_class: Any = partial(ArgumentParser, refuse)  # called like a class
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=parser_class)
    for name, text in (
        ("inspect", "list the checkpoints, their contents, and whether they are valid; exits with 1 if one is not"),
        ("verify", "check every digest; exits with 1 if one is wrong"),
        ("export", "write the weights of one checkpoint as a plain file, for inference"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "directory",
            type=parse_location,
            metavar="DIR",
            help="a run's checkpoint directory, or its s3:// or gs:// URL",
        )
        if name != "export":
            command.add_argument("-o", "--output", choices=["table", "json"], default="table", help="output format")
            continue
        command.add_argument("--to", type=Path, required=True, metavar="FILE", help="new file, *.pt or *.safetensors")
        which = command.add_mutually_exclusive_group()
        which.add_argument("--step", type=int, metavar="N", help="step of the checkpoint (default: the newest)")
        which.add_argument("--best", metavar="METRIC", help="take the best checkpoint by this metric")
    return parser


def _list_checkpoints(arguments: argparse.Namespace) -> int:
    with_contents = arguments.command == "inspect"
    entries = [_entry(listed, with_contents=with_contents) for listed in list_checkpoints(arguments.directory)]
    _show(entries, arguments)
    bad = [entry for entry in entries if entry.trouble]
    for entry in bad:
        print(f"{entry.listed.place}: {entry.trouble}.", file=sys.stderr)
    if not entries:
        print(f"There is no checkpoint in {arguments.directory}.", file=sys.stderr)
    return Exit.FAILURE if bad or not entries else Exit.SUCCESS


def _export(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        checkpoint = _chosen(arguments, stack)
        try:
            found = checkpoint_files.unpack(checkpoint, only="model")["model"]
        except OSError as err:
            raise BadConfig(
                f"{checkpoint.directory} cannot be read: {reason_of(err)}.", hint="Export another one."
            ) from None
    try:
        export_weights(found, arguments.to)
    except OSError as err:
        raise BadConfig(f"{arguments.to} cannot be written: {reason_of(err)}.", hint="Give another --to.") from None
    print(f"{arguments.to}: weights after step {checkpoint.manifest.step}.", file=sys.stderr)
    return Exit.SUCCESS


def _chosen(arguments: argparse.Namespace, stack: ExitStack) -> Checkpoint:
    """Return the checkpoint to export; its files are there until the stack is closed."""
    complete = {
        listed: manifest
        for listed in list_checkpoints(arguments.directory)
        if (manifest := listed.manifest()) is not None
    }
    wanted = list(complete)
    if arguments.step is not None:
        wanted = [listed for listed, manifest in complete.items() if manifest.step == arguments.step]
    elif arguments.best is not None:
        best = checkpoint_files.best_of(complete, TargetMetric(arguments.best))
        wanted = [] if best is None else [best]
    for listed in wanted:
        try:
            checkpoint = checkpoint_files.read(stack.enter_context(listed.open()))
        except (CorruptCheckpoint, OSError) as err:
            print(f"Skipped {listed.place}: {err}.", file=sys.stderr)
            continue
        if checkpoint.manifest.format > FORMAT:
            raise BadConfig(
                f"{listed.place} has format {checkpoint.manifest.format}, and this version reads format {FORMAT}.",
                hint="Export with the version that wrote it.",
            )
        return checkpoint
    steps = ", ".join(str(manifest.step) for manifest in complete.values()) or "none"
    which = "valid checkpoint"
    if arguments.step is not None:
        which += f" of step {arguments.step}"
    elif arguments.best is not None:
        which += f" that was evaluated by {arguments.best!r}"
    raise BadConfig(f"There is no {which} in {arguments.directory}.", hint=f"There are steps: {steps}.")


def _entry(listed: CheckpointInfo, *, with_contents: bool) -> Entry:
    manifest = listed.manifest()
    try:
        with listed.open() as directory:
            checkpoint = checkpoint_files.read(directory)
            if checkpoint.manifest.format > FORMAT:
                return Entry(listed, None, f"format {checkpoint.manifest.format} is newer than this version")
            contents = ", ".join(_described(checkpoint_files.unpack(checkpoint))) if with_contents else ""
    except StorageError:
        raise
    except TrainError as err:
        return Entry(listed, manifest, err.message.rstrip("."))
    except (CorruptCheckpoint, OSError) as err:
        return Entry(listed, manifest, reason_of(err))
    return Entry(listed, checkpoint.manifest, "", contents)


def _described(state: dict[str, object]) -> Iterator[str]:
    for name, value in state.items():
        tensors = list(_tensors(value))
        numbers = sum(tensor.numel() for tensor in tensors)
        if value is not None:
            yield f"{name} ({numbers:,} numbers in {len(tensors)} tensors)" if tensors else name


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _show(entries: Sequence[Entry], arguments: argparse.Namespace) -> None:
    if arguments.output == "json":
        print(json.dumps([entry.to_dict() for entry in entries]))
        return
    rows = [("STEP", "EPOCH", "SIZE", "WORLD", "WRITTEN", "METRICS", "VALID")]
    for entry in entries:
        step = str(entry.listed.step)
        valid = entry.trouble or "yes"
        if entry.manifest is None:
            size_bytes = entry.listed.size_bytes
            rows.append((step, "", "" if size_bytes is None else f"{size_bytes:,}", "", "", "", valid))
            continue
        manifest = entry.manifest
        metrics = " ".join(f"{name}={value:.4g}" for name, value in (manifest.metrics or {}).items())
        written = datetime.fromtimestamp(manifest.written_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        size = f"{manifest.total_bytes:,}"
        rows.append((step, str(manifest.epoch), size, str(manifest.world_size), written, metrics or "-", valid))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    newest = next((entry.contents for entry in entries if entry.contents), "")
    if newest:
        print(f"\nThe newest holds {newest}.")
