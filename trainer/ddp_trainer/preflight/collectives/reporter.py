"""Collection of the results on rank 0: table rows as they come, then sentences and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_trainer.preflight.collectives import report
from ddp_trainer.preflight.collectives.comparison import Change, Earlier, slower
from ddp_trainer.preflight.collectives.errors import SLOWER
from ddp_trainer.preflight.collectives.floors import Floors, Speeds, as_json, below, floors_of, slow_buses
from ddp_trainer.preflight.collectives.request import OFF, Request
from ddp_trainer.preflight.collectives.result import Result, Unsupported


@dataclass(slots=True)
class Outcome:
    """Results of the run so far, on rank 0."""

    request: Request
    earlier: Earlier | None
    devices: Sequence[Mapping[str, Any]] = ()
    """Name, node and speeds of each rank's device."""
    own_floors: Mapping[str, Floors] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    changes: list[Change | None] = field(default_factory=list)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Print what is measured.

        Raises:
            BadRequest: The run is not comparable with the earlier one.
        """
        if self.earlier:
            self.earlier.refuse_other(about)
        if self._is_table:
            hosts = len({rank["host"] for rank in about["ranks"]})
            print(
                f"{about['world_size']} {'rank' if about['world_size'] == 1 else 'ranks'} on {hosts} "
                f"{'host' if hosts == 1 else 'hosts'}, {about['backend']}, torch {about['torch']}; times are of the "
                f"slowest rank, {self.request.repeats} repeats"
            )
            print(report.header(compared=self.earlier is not None), flush=True)

    def take(self, result: Result | Unsupported) -> None:
        """Add one result, and print its row."""
        if isinstance(result, Unsupported):
            self.unsupported.append(result)
            line = report.unsupported_row(result)
        else:
            change = self.earlier.change(result, self.request.tolerance) if self.earlier else None
            self.results.append(result)
            self.changes.append(change)
            line = report.row(result, change)
        if self._is_table:
            print(line, flush=True)

    def finish(self, about: Mapping[str, Any]) -> tuple[int, str]:
        """Return the exit code, and a sentence if it is not 0."""
        if not self._is_table:
            devices = [as_json(each["name"], _speeds(each), self._floors(each)) for each in self.devices]
            more = {**about, "devices": devices}
            print(report.document(more, self.results, self.unsupported, self.changes), flush=True)
        wrong = [sentence for result in self.results for sentence in report.sentences(result)]
        if wrong:
            for sentence in wrong:
                print(f"ddp-launch collectives: {sentence}", file=sys.stderr)
            return 1, f"{len(wrong)} results are wrong, the first: {wrong[0]}" if len(wrong) > 1 else wrong[0]
        low = list(self._below(about))
        if low:
            for sentence in low:
                print(f"ddp-launch collectives: {sentence}", file=sys.stderr)
            return SLOWER, low[0]
        pairs = [(result, change) for result, change in zip(self.results, self.changes, strict=True) if change]
        worse = slower(pairs)
        if worse and self.earlier:
            result, change = worse[0]
            return SLOWER, (
                f"{len(worse)} of {len(pairs)} measurements are slower than in {self.earlier.file}, the most: "
                f"{report.title(result)}, {change.ratio:.2f} times."
            )
        return 0, ""

    def _below(self, about: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each speed below a floor, with rank and node."""
        for rank, each in enumerate(self.devices):
            speeds = _speeds(each)
            for told in below(speeds, self._floors(each)) if speeds else ():
                yield f"Rank {rank} on {each['node']} ({each['name']}) {told}."
        names = {each["name"] for each in self.devices}
        if len(names) == 1 and self.request.floors != OFF:
            hosts = {rank["host"] for rank in about["ranks"]}
            floors = self._floors(self.devices[0])
            for told in slow_buses(self.results, floors, len(self.devices), len(hosts)):
                yield f"{', '.join(hosts)}: {told}."

    def _floors(self, device: Mapping[str, Any]) -> Floors:
        return floors_of(device["name"], self.own_floors)

    @property
    def _is_table(self) -> bool:
        return self.request.output == "table"


def _speeds(device: Mapping[str, Any]) -> Speeds | None:
    return Speeds(**device["speeds"]) if device["speeds"] else None
