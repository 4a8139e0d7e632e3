"""Claims of docs/security.md about the installed torch, our code, and the objects of the platform."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ddp_trainer.common.constants import Port
from kubectl_ddp.values import network_peers

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("trainer", "kubectl_plugin", "ddp_collectives", "ddp_preflight", "ddp_report", "ddp_workloads")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGE = (ROOT / "docs" / "security.md").read_text()
UNPICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
OBJECT_COLLECTIVES = {
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}


def listening(port: int) -> set[str]:
    """Addresses on which this machine listens at a port, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            address, _, number = local.partition(":")
            if int(number, 16) == port and state == "0A":
                found.add(address)
    return found


def test_a_store_of_torch_that_is_given_the_loopback_listens_everywhere() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    [address] = listening(store.port)
    assert set(address) == {"0"}


class Stranger:
    """Object that calls ``Path.touch`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_the_rendezvous_of_stock_torchrun_runs_what_a_stranger_has_written(tmp_path: Path) -> None:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    backend = C10dRendezvousBackend(store, "run")
    backend.set_state(pickle.dumps(Stranger(tmp_path / "touched")))
    alive = {"keep_alive_interval": timedelta(seconds=5), "keep_alive_max_attempt": 3}
    timeout = dynamic_rendezvous.RendezvousTimeout()
    settings = dynamic_rendezvous.RendezvousSettings("run", 1, 1, timeout, **alive)
    holder = dynamic_rendezvous._BackendRendezvousStateHolder(backend, settings)
    with pytest.raises(AttributeError):  # what came is not a state; by then it has run
        holder.sync()
    assert (tmp_path / "touched").exists()


def offences(source: str) -> Iterator[str]:
    """Yield the calls and imports of a source that would execute untrusted data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names if item.name in UNPICKLES - {"pickle"})
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in UNPICKLES or node.module == "torch.distributed.rpc":
                yield node.module
        elif isinstance(node, ast.Call):
            *place, name = ast.unparse(node.func).split(".")
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if (place == ["torch"] and name == "load" and words.get("weights_only") != "True") or (
                name in OBJECT_COLLECTIVES or (set(place) & UNPICKLES and name in {"load", "loads", "Unpickler"})
            ):
                yield ast.unparse(node)


def test_nothing_of_ours_unpickles_but_weights() -> None:
    assert {path: found for path in SOURCES if (found := list(offences(path.read_text())))} == {}


def rows(section: str) -> list[list[str]]:
    """Cells of the rows of the first table in a section of the page."""
    _, _, rest = PAGE.partition(f"\n## {section}\n")
    table = re.search(r"^\|.*\|$(?:\n^\|.*\|$)+", rest.partition("\n## ")[0], re.MULTILINE)
    assert table is not None, section
    _, _, *lines = table[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("row", [*rows("Listeners"), *rows("Objects")], ids=lambda row: row[0])
def test_each_listener_and_object_names_tests_that_are_there(row: list[str]) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", row[-1])
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_platform_has_every_policy_and_role_that_the_page_names() -> None:
    named = {name for row in rows("Objects") for name in re.findall(r"`(ddp-[a-z-]+)`", row[1])}
    files = sorted((ROOT / "manifests").glob("*/**/*.yaml"))
    objects = [item for path in files for item in yaml.safe_load_all(path.read_text())]
    made = {item["metadata"]["name"] for item in objects if is_object(item)}
    assert len(named) >= 10
    assert named <= made


def is_object(item: object) -> bool:
    return isinstance(item, dict) and "name" in item.get("metadata", {})


def test_the_page_names_the_ports_and_the_dns_servers_of_the_code() -> None:
    [store, _, metrics, *_] = rows("Listeners")
    assert f"port {Port.RENDEZVOUS:d}" in store[0]
    assert f"port {Port.METRICS:d}" in metrics[0]
    pods, node_local = network_peers.DEFAULT
    assert f"`{pods.label}={pods.value}` in `{pods.namespace}`" in PAGE
    assert f"at {node_local.addresses.removesuffix('/32')}" in PAGE
