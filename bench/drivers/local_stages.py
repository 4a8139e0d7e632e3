"""Failures staged as local jobs, for ``bench why`` without a cluster: the same scripts, on this machine.

What fills a disk or makes it read-only gets a separate mount in the job's mount namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubectl_ddp.backends.local.backend import LocalBackend
from tests.cluster.live_cluster import Result
from tests.cluster.staged_starts import STARTS
from tests.cluster.staging import IDLE, Json, Stage
from tests.support import fork_server

_MOUNTS: Final = ("unshare", "--mount", "sh", "-ec")
_SIZE: Final = ("--nnodes", "1", "--nproc", "1")


@dataclass
class LocalStaging:
    """Local jobs below a directory, with as much of :class:`~tests.cluster.staging.Staging` as ``bench why`` uses."""

    home: Path
    began: dict[str, float] = field(default_factory=dict)
    """Stage → Unix time of its submission."""

    @property
    def backend(self) -> LocalBackend:
        return LocalBackend(environ=self._job_environment(), directory=self.home)

    def can(self, stage: Stage) -> bool:
        """Return whether a stage needs no cluster and this machine allows its mounts."""
        if stage not in STARTS.values():
            return False
        tried = [*_MOUNTS, "mount -t tmpfs none /mnt"]
        return not stage.here or subprocess.run(tried, capture_output=True, check=False).returncode == 0

    def objects(self, name: str, stage: Stage) -> list[Json]:
        """Write the script of a stage; its objects are made by its submission."""
        (self.home / f"{name}.py").write_text(stage.script)
        return []

    def start(self, name: str, stage: Stage, _: list[Json]) -> None:
        """Submit the job of a stage."""
        environ = self._job_environment(name)
        Path(environ["TMPDIR"]).mkdir(exist_ok=True)
        script = str(self.home / f"{name}.py")
        words = [word for word in stage.words if word not in IDLE]
        submit = [sys.executable, "-m", "kubectl_ddp", "submit", script, "--local", "--name", name]
        command = [*submit, *_SIZE, *words]
        if stage.here:
            command = [*_MOUNTS, f'{stage.here}; exec "$@"', "sh", *command]
        subprocess.run(command, env=environ, check=True, capture_output=True)
        self.began[name] = time.time()

    def ddp(self, command: str, *words: str) -> Result:
        """Run a command of ``kubectl ddp`` about the local jobs."""
        done = fork_server.run(
            ["-m", "kubectl_ddp", command, "--local", *words],
            env=self._job_environment(),
            timeout=60.0,
            imported=fork_server.COMMAND_LINE,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def clean(self) -> None:
        """Delete the jobs, and wait for the end of their processes."""
        for snapshot in self.backend.jobs():
            self.backend.delete(str(snapshot.job["metadata"]["name"]))

    def _job_environment(self, name: str = "scratch") -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.home / "state"), "TMPDIR": str(self.home / name)}
