"""Every command that the documents type at a cluster works on one: blocks marked ``console cluster``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.live_cluster import Namespace, until
from tests.docs.test_documents import ROOT, blocks, typed


def kubeconfig_of(space: Namespace) -> Path:
    """The cluster's own kubeconfig, with the test's namespace as the context's."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    [context] = [each["context"] for each in config["contexts"] if each["name"] == config["current-context"]]
    context["namespace"] = space.name
    path = space.home / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("block", blocks("console", "cluster"))
def test_a_command_in_a_document_works_on_a_cluster(block: str, space: Namespace, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    done = subprocess.run(
        ["bash", "-c", typed(block)],
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KUBECONFIG": str(kubeconfig_of(space)),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "IMAGE": space.image,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    until("that nothing is left", lambda: not space.left())
