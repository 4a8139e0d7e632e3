"""Fixtures and hooks of all tests."""

import asyncio
import gc
import inspect
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from bench.descendants import end_with_descendants
from tests.support.certificates import self_signed
from tests.support.clocks import Clock
from tests.support.helm import HOW, Helm, helms, program
from tests.support.skipped_tests import note_skipped

# How long an example takes is the machine's business.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

# The garbage collector need not look often at what imports and thousands of tests leave.
gc.set_threshold(50_000, 20, 100)

# Threads of OpenMP that wait, also in processes that tests start, leave the processors to other tests at once.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A shell starts what it puts into the background with Ctrl-C ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "test_train_replicas",
    "test_launch_reform",
    "test_train_stream_model",
    "test_local_examples",
    "test_launch_one_node",
    "test_object_stores",
    "test_documents",
)
"""Files of tests/local and tests/docs that take minutes, in the order in which they begin."""

SLOW_FOLDERS = tuple(Path(__file__).parent / name for name in ("docs", "local"))
SPREAD = "test_documents"
"""File whose tests any process runs. Those of another file, which may share what is slow to make, have one process."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """End what tests start together with pytest, also if it is killed: a job of a test would train without end."""
    if not hasattr(config, "workerinput"):  # of pytest-xdist, whose processes end with pytest
        end_with_descendants()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group tests by file."""
    if item.path.stem != SPREAD and any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no process is left with one of them at the end."""
    order = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONGEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Drop the group from the name of a test, or ``--last-failed`` would not find it; pytest-xdist needs it before."""
    if hasattr(report, "node") and not report.nodeid.endswith("]"):
        report.nodeid = report.nodeid.rpartition("@")[0] or report.nodeid


def pytest_collection_finish() -> None:
    """Spare the processors: the garbage collector need not look at thousands of tests again and again, and threads of
    torch in several test processes would wait for each other in loops.
    """
    gc.collect()
    gc.freeze()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Note why tests were skipped, for the last line of ``make test``; not in the processes of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        note_skipped(terminalreporter.stats.get("skipped", ()))


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The newest Helm of this machine."""
    if not helms():
        pytest.skip(f"This test renders a chart. {HOW}")
    return helms()[max(helms())]


@pytest.fixture(scope="session", params=(3, 4))
def each_helm(request: pytest.FixtureRequest) -> Helm:
    """Helm 3, and Helm 4."""
    major: int = request.param
    if major not in helms():
        pytest.skip(f"This test renders a chart with Helm {major}. {HOW}")
    return helms()[major]


@pytest.fixture(scope="session")
def kubectl() -> str:
    """Path of kubectl."""
    found = program("kubectl")
    if found is None:
        pytest.skip(f"This test runs kubectl. {HOW}")
    return found


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))
