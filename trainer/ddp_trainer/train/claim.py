"""Who may write to a checkpoint directory: the newest worker group, by a claim it leaves there.

Two groups can believe that they train the same run, for example when a node was cut off from the network and came
back. Each writer leaves a claim with a token of its own when it starts, and looks before each commit whether its
token still stands there. The group that was superseded so learns it before it can replace anything.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from ddp_trainer.train.durable import write_durably
from ddp_trainer.train.errors import StaleGeneration

FILE: Final = "CLAIM"


class Claim:
    """This writer's claim on one directory."""

    def __init__(self, directory: Path, *, generation: int, fence: int, run_id: str, token: str) -> None:
        self._file = directory / FILE
        self._generation = generation
        self._fence = fence
        self._run_id = run_id
        self.token = token
        """Unlike that of any other writer."""
        self._taken = False

    def take(self) -> None:
        """Become the directory's writer; newest wins.

        Raises:
            StaleGeneration: a later worker group of this run has claimed it already, as its greater fence tells;
                generations begin at 1 again when store and pods are all new, as after a suspension.
            OSError: the claim could not be written.
        """
        standing = self._standing()
        same_run = bool(self._run_id) and standing.get("run_id") == self._run_id
        fence = standing.get("fence")
        if same_run and isinstance(fence, int) and fence > self._fence:
            raise self._stale(standing.get("generation"))
        claim = {
            "token": self.token,
            "generation": self._generation,
            "fence": self._fence,
            "run_id": self._run_id,
            "pid": os.getpid(),
        }
        write_durably(self._file, json.dumps(claim).encode())
        self._taken = True

    def renew(self, *, generation: int, fence: int) -> None:
        """Claim it again for a later group, in which this writer still is one; what it is writing stays valid.

        Raises:
            StaleGeneration: as :meth:`take` does.
            OSError: the claim could not be written.
        """
        self._generation, self._fence, self._taken = generation, fence, False
        self.take()

    def check(self) -> None:
        """Pass if this writer's claim still stands; take it first if that has not worked so far.

        Raises:
            StaleGeneration: another writer has claimed the directory since.
            OSError: the claim could not be read or written.
        """
        if not self._taken:
            self.take()
            return
        standing = self._standing()
        if standing.get("token") != self.token:
            raise self._stale(standing.get("generation"))

    def _standing(self) -> dict[str, object]:
        try:
            claim = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            return {}
        return claim if isinstance(claim, dict) else {}

    def _stale(self, later: object) -> StaleGeneration:
        return StaleGeneration(
            f"Generation {self._generation} may no longer write to {self._file.parent}: "
            f"generation {later} has claimed it.",
            hint="This worker group leaves; the newer one goes on.",
        )
