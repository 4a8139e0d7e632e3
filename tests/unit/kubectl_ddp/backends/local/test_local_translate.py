"""Names to addresses, mount paths to directories."""

from __future__ import annotations

import pytest

from kubectl_ddp.backends.local.environment import translation

ADDRESSES = {"digits-store": "127.1.1.1", "digits-worker-1": "127.1.1.3", "digits-worker-10": "127.1.1.12"}
DIRECTORIES = {"/checkpoints": "/home/a b/ckpt", "/var/run/ddp": "/state/run", "/var/run/ddp-code": "/state/code"}


@pytest.mark.parametrize(("text", "expected"), [
    pytest.param("--rdzv-endpoint=digits-store:29400", "--rdzv-endpoint=127.1.1.1:29400", id="endpoint"),
    pytest.param("digits-store", "127.1.1.1", id="alone"),
    pytest.param("digits-store.team.svc.cluster.local:1", "127.1.1.1:1", id="qualified"),
    pytest.param("digits-store.team", "127.1.1.1", id="with namespace"),
    pytest.param("digits-store.py", "digits-store.py", id="a file name"),
    pytest.param("http://digits-store/health", "http://127.1.1.1/health", id="URL with a path"),
    pytest.param("my-digits-store", "my-digits-store", id="end of another name"),
    pytest.param("digits-store-2", "digits-store-2", id="beginning of another name"),
    pytest.param("./digits-store/x", "./digits-store/x", id="path"),
    pytest.param("digits-worker-10,digits-worker-1", "127.1.1.12,127.1.1.3", id="one name begins another"),
    pytest.param("/checkpoints", "/home/a b/ckpt", id="mount"),
    pytest.param("--dir=/checkpoints/a", "--dir=/home/a b/ckpt/a", id="below a mount"),
    pytest.param("/checkpoints2", "/checkpoints2", id="another directory"),
    pytest.param("/data/checkpoints", "/data/checkpoints", id="same name elsewhere"),
    pytest.param("/var/run/ddp-code/train.py", "/state/code/train.py", id="longest mount first"),
    pytest.param("/var/run/ddp/x:/checkpoints", "/state/run/x:/home/a b/ckpt", id="list of paths"),
    pytest.param("s3://bucket/checkpoints", "s3://bucket/checkpoints", id="object store"),
    pytest.param("[rank${rank}] ", "[rank${rank}] ", id="nothing to do"),
])  # fmt: skip
def test_whole_names_and_whole_path_components_are_translated(text: str, expected: str) -> None:
    assert translation(ADDRESSES, DIRECTORIES, "team")(text) == expected
