"""Collection of the results on rank 0: table rows as they come, then sentences and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddp_collectives import report
from ddp_collectives.comparison import BaselineRun, Change, ChangeVerdict
from ddp_collectives.errors import SLOWER
from ddp_collectives.request import OFF, MeasurementRequest
from ddp_collectives.result import Result, Unsupported
from ddp_collectives.thresholds import (
    DeviceThroughput,
    Thresholds,
    slow_all_reduces,
    threshold_violations,
    thresholds_for,
)


@dataclass(slots=True)
class ResultReporter:
    """Results of the run so far, on rank 0."""

    request: MeasurementRequest
    earlier: BaselineRun | None
    devices: Sequence[Mapping[str, Any]] = ()
    """Name, node and speeds of each rank's device."""
    own_floors: Mapping[str, Thresholds] = field(default_factory=dict)
    results: list[tuple[Result, Change | None]] = field(default_factory=list)
    """Results, each with its change since the earlier run."""
    unsupported: list[Unsupported] = field(default_factory=list)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Print what is measured.

        Raises:
            BadRequest: The run is not comparable with the earlier one.
        """
        if self.earlier:
            self.earlier.check_comparable(about)
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
            self.results.append((result, change))
            line = report.row(result, change)
        if self._is_table:
            print(line, flush=True)

    def finish(self, about: Mapping[str, Any]) -> tuple[int, str]:
        """Return the exit code, and a sentence if it is not 0."""
        if not self._is_table:
            devices = [
                {"name": each["name"], "speeds": each["speeds"], "floors": asdict(self._thresholds(each))}
                for each in self.devices
            ]
            print(report.results_to_json({**about, "devices": devices}, self.results, self.unsupported), flush=True)
        wrong = [sentence for result, _ in self.results for sentence in report.error_messages(result)]
        low = [] if wrong else list(self._threshold_messages(about))
        for sentence in wrong or low:
            print(f"ddp-launch collectives: {sentence}", file=sys.stderr)
        if wrong:
            return 1, f"{len(wrong)} results are wrong, the first: {wrong[0]}" if len(wrong) > 1 else wrong[0]
        if low:
            return SLOWER, low[0]
        worse = [
            (change.ratio or 0, report.title(result))
            for result, change in self.results
            if change and change.verdict is ChangeVerdict.SLOWER
        ]
        if worse and self.earlier:
            ratio, title = max(worse)
            return SLOWER, (
                f"{len(worse)} of {len(self.results)} measurements are slower than in {self.earlier.file}, the most: "
                f"{title}, {ratio:.2f} times."
            )
        return 0, ""

    def _threshold_messages(self, about: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each speed below a floor, with rank and node."""
        for rank, each in enumerate(self.devices):
            if not each["speeds"]:
                continue
            for told in threshold_violations(DeviceThroughput(**each["speeds"]), self._thresholds(each)):
                yield f"Rank {rank} on {each['node']} ({each['name']}) {told}."
        names = {each["name"] for each in self.devices}
        if len(names) == 1 and self.request.floors != OFF:
            hosts = {rank["host"] for rank in about["ranks"]}
            floors = self._thresholds(self.devices[0])
            for told in slow_all_reduces([result for result, _ in self.results], floors, len(self.devices), len(hosts)):
                yield f"{', '.join(hosts)}: {told}."

    def _thresholds(self, device: Mapping[str, Any]) -> Thresholds:
        return thresholds_for(device["name"], self.own_floors)

    @property
    def _is_table(self) -> bool:
        return self.request.output == "table"
