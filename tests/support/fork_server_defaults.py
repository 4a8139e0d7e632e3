"""Defaults of a user under which pods start no fork server, which would import torch once more in each of them.

A test whose job needs one sets ``--env DDP_ZYGOTE=5``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env


def configure(folder: Path) -> None:
    """Write the defaults to a directory that serves as XDG_CONFIG_HOME."""
    (folder / "kubectl-ddp").mkdir(parents=True)
    (folder / "kubectl-ddp" / "config.yaml").write_text(f'env.{Env.ZYGOTE}: "0"\n')


@pytest.fixture(autouse=True, scope="session")
def without_fork_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have all jobs of the session use the defaults."""
    folder = tmp_path_factory.mktemp("config")
    configure(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield
