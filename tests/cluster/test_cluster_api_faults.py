"""The command line on a faulty API server: one error sentence, a documented exit code, no change made twice.

The cluster is real; a proxy in front of it injects the faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.engines import PYTORCHJOB
from tests.cluster.api_proxy import ApiProxy, Fault, api_proxy
from tests.cluster.live_cluster import Namespace, Result, podless_namespace
from tests.cluster.test_cluster_engines import need

JOB = (
    *("--preflight=off", "--image", "registry.invalid/never:1", "--engine", "pytorchjob", "--nnodes", "1:2"),
    *("--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--command", "true"),
)
DONE, ERROR, NOT_FOUND, PREFLIGHT, FORBIDDEN, TIMED_OUT = 0, 1, 3, 4, 5, 124
DOCUMENTED = {DONE, ERROR, 2, NOT_FOUND, PREFLIGHT, FORBIDDEN, 10, 11, 12, 13, TIMED_OUT, 130}

COMMANDS: dict[str, tuple[str, ...]] = {
    "list": ("list",),
    "status": ("status", "there"),
    "top": ("top", "there", "-o", "json"),
    "logs": ("logs", "there"),
    "wait": ("wait", "there", "--for=deleted", "--timeout", "1s"),
    "scale": ("scale", "there", "--nnodes", "2"),
    "suspend": ("suspend", "there"),
    "resume": ("resume", "there"),
    "delete": ("delete", "-y", "there"),
    "submit": ("submit", "--name", "there", *JOB),
    "dry-run": ("submit", "--name", "other", *JOB, "--dry-run=server"),
}
FAULTS: dict[str, Fault] = {
    "401": Fault(status=401),
    "404 of no API server": Fault(status=404, body="404 page not found\n"),
    "409": Fault(status=409),
    "410": Fault(status=410),
    "429": Fault(status=429, headers={"Retry-After": "0"}),
    "503": Fault(status=503, headers={"Retry-After": "0"}),
    "a login page": Fault(status=200, body="<html>Please log in</html>"),
    "dropped": Fault(is_dropped=True),
    "answer lost": Fault(loses_answer=True),
    "torn in order": Fault(cut_after=20, cut_in_order=True),
}
CODES = {"401": {FORBIDDEN}, "404 of no API server": {NOT_FOUND, PREFLIGHT}}
"""Exit codes by fault; the other faults give 1, or 2 where a value is refused."""


def may_end(command: str, fault: str) -> set[int]:
    """Return the allowed exit codes. On a 404, ``list`` and ``wait`` may also succeed."""
    codes = CODES.get(fault, {ERROR, 2})
    if fault.startswith("404") and command in {"list", "wait"}:
        codes = codes | {DONE}
    return codes | {TIMED_OUT} if command == "wait" else codes


@pytest.fixture(scope="module")
def still(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace whose quota allows no pods."""
    with podless_namespace(api, tmp_path_factory.mktemp("home")) as space:
        need(space, "pytorchjob")
        yield space


@pytest.fixture
def proxy(still: Namespace, tmp_path: Path) -> Iterator[ApiProxy]:
    with api_proxy(still.api.connection, tmp_path) as made:
        yield made


def through(space: Namespace, proxy: ApiProxy, *words: str) -> Result:
    """Run a command through the proxy; Namespace.ddp fails on a traceback."""
    done = space.ddp(*words, environ={"KUBECONFIG": str(proxy.kubeconfig)}, seconds=60)
    assert "This is a bug" not in done.err, done.err
    assert done.code in DOCUMENTED, f"{words}: {done.code} {done.err}"
    errors = [line for line in done.err.splitlines() if line.startswith(("error: ", '{"code": '))]
    assert bool(errors) == (done.code != DONE), done.err
    return done


def roots_named(space: Namespace, name: str) -> int:
    path = space.path(PYTORCHJOB.api_version, PYTORCHJOB.plural)
    found, _ = space.api.items(path, labelSelector=f"{Label.JOB}={name}")
    return sum("deletionTimestamp" not in item["metadata"] for item in found)


def there(space: Namespace) -> None:
    space.ddp("submit", "--name", "there", *JOB).ok()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_command_ends_with_a_sentence_and_a_documented_code_when_every_call_goes_wrong(
    still: Namespace, tmp_path: Path, fault: str
) -> None:
    there(still)

    def run(command: str) -> Result:
        with api_proxy(still.api.connection, tmp_path / command) as proxy:
            proxy.fresh(lambda _: FAULTS[fault])
            return through(still, proxy, *COMMANDS[command])

    with ThreadPoolExecutor(4) as pool:
        results = dict(zip(COMMANDS, pool.map(run, COMMANDS), strict=True))
    for command, done in results.items():
        assert done.code in may_end(command, fault), f"{command}: {done.code} {done.err}"
    assert roots_named(still, "there") <= 1


def test_commands_use_few_connections_and_few_calls(still: Namespace, proxy: ApiProxy) -> None:
    there(still)
    calls = {}
    for command in ("list", "status", "suspend", "resume"):
        proxy.fresh()
        through(still, proxy, *COMMANDS[command]).ok()
        calls[command] = len(proxy.asked)
    assert calls["list"] <= 8
    assert calls["status"] <= 5  # one request for each kind of job, in parallel
    assert calls["resume"] <= 5
