"""Comparison of a run with an earlier one: measurements that are slower by more than the noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ddp_collectives.errors import BadRequest
from ddp_collectives.result import API_VERSION, KIND, Result


class ChangeVerdict(StrEnum):
    """Result of comparing one measurement."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    NEW = "new"
    """The earlier run does not contain the measurement."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one measurement since the earlier run."""

    verdict: ChangeVerdict
    ratio: float | None
    """Present median divided by earlier median; None for a new measurement."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """Saved output of an earlier run."""

    file: str
    document: Mapping[str, Any]
    results: Mapping[tuple[str, str, int], Result]

    @classmethod
    def read(cls, file: str) -> BaselineRun:
        """Read the file of an earlier run.

        Raises:
            BadRequest: The file is unreadable, damaged, or not the output of such a run.
        """
        try:
            document = json.loads(Path(file).read_text())
        except OSError as error:
            raise BadRequest(f"--compare {file} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise BadRequest(f"--compare {file} is not JSON: {error}.") from None
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise BadRequest(f"--compare {file} is not an output of `ddp-launch collectives -o json`.")
        if document.get("apiVersion") != API_VERSION:
            version = document.get("apiVersion")
            raise BadRequest(f"--compare {file} has the version {version}, and this program reads {API_VERSION}.")
        try:
            results = [Result.from_json(each) for each in document["results"]]
        except (KeyError, TypeError) as error:
            raise BadRequest(f"--compare {file} is damaged: {error}.") from None
        return cls(file, document, {result.identity: result for result in results})

    def check_comparable(self, about: Mapping[str, Any]) -> None:
        """Check that the earlier run has the backend and size of this one.

        Raises:
            BadRequest: They differ, so the runs are not comparable.
        """
        for key in ("backend", "world_size"):
            if self.document.get(key) != about[key]:
                raise BadRequest(
                    f"--compare {self.file} was measured with {key} {self.document.get(key)}, this run has "
                    f"{about[key]}; compare runs of the same kind."
                )

    def change(self, now: Result, tolerance: float) -> Change:
        """Compare a result with the earlier run.

        A result is slower if its median grew by more than ``tolerance`` and the middle halves of both runs do not
        overlap.
        """
        then = self.results.get(now.identity)
        if then is None:
            return Change(ChangeVerdict.NEW, None)
        ratio = now.seconds.median / then.seconds.median
        if ratio > 1 + tolerance and now.seconds.lower_quartile > then.seconds.upper_quartile:
            return Change(ChangeVerdict.SLOWER, ratio)
        if 1 / ratio > 1 + tolerance and now.seconds.upper_quartile < then.seconds.lower_quartile:
            return Change(ChangeVerdict.FASTER, ratio)
        return Change(ChangeVerdict.SAME, ratio)
