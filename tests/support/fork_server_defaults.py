"""Defaults of a user under which no fork server starts beside workers, where it would import torch once more.

A test whose job needs one sets ``--env DDP_FORK_SERVER=5``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env

NOT_LATER = "86400"
"""Seconds after which a launcher starts the fork server beside its workers: no test lasts so long."""


def configure(folder: Path) -> None:
    """Write the defaults to a directory that serves as XDG_CONFIG_HOME."""
    (folder / "kubectl-ddp").mkdir(parents=True)
    (folder / "kubectl-ddp" / "config.yaml").write_text(f'env.{Env.FORK_SERVER}: "{NOT_LATER}"\n')


@pytest.fixture(autouse=True, scope="module")
def fork_servers_only_first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the jobs of a module start a fork server before their workers or never."""
    folder = tmp_path_factory.mktemp("config")
    configure(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield
