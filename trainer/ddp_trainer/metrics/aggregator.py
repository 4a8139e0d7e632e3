"""HTTP server that Prometheus scrapes, one process per pod.

Start it with ``python -m ddp_trainer aggregate --directory D --port P``. The launcher starts it before torch is
imported, and it ends with the launcher. It reads metrics files and never waits for a rank, so it also serves ranks that
hang, hold the GIL, are stopped or dead.

Exit codes: 0 after a stop signal or the end of the launcher; 1 if it cannot listen (training continues without
metrics); 2 for a usage error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from prometheus_client import exposition as prometheus_text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ddp_trainer.common.constants import HANG_PATH, HISTORY_PATH, Env, Exit, Port
from ddp_trainer.common.listener import listen
from ddp_trainer.metrics.collect.collectives import Collectives
from ddp_trainer.metrics.collect.pod_sampler import GpuSampler
from ddp_trainer.metrics.serve.collector import Exposition
from ddp_trainer.metrics.serve.history import History, downsample, lines
from ddp_trainer.metrics.serve.server import (
    HangProxy,
    HttpRequest,
    Response,
    ScrapeTracker,
    Selection,
    Server,
    UnreadableFiles,
    error_response,
    families_in,
    max_wait_seconds,
)
from ddp_trainer.net import asyncio_utils
from ddp_trainer.net.addresses import port_argument

if TYPE_CHECKING:
    from ddp_trainer.metrics.serve.trainjob import Reporter

T = TypeVar("T")

TRAINJOB_SERVER: Final = "KUBEFLOW_TRAINER_SERVER_URL"
"""Variable that Kubeflow Trainer sets in pods whose progress it collects; see ``serve/trainjob.py``."""
IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
"""Variable that the kubelet sets in every container."""
LOOPBACK: Final = "127.0.0.1"
LOCAL_JOB: Final = "local"
"""Value of the label ``ddp_job`` if the job has no name."""
FRESH_SECONDS: Final = 0.05
"""Seconds for which a page is served again. A flood of scrapes reads the metrics files once per interval."""
MOST_PAGES: Final = 8
"""Pages kept per interval. A further selection of families receives the page with all families."""
_COLLECTED: Final = "collected"
BIND_SECONDS: Final = 3.0
"""Seconds to retry a port in use: the aggregator of the previous launcher needs a moment to exit."""
PARENT_POLL_SECONDS: Final = 0.2

OPENMETRICS: Final = "application/openmetrics-text"
FORMATS: Final[dict[bool, tuple[Callable[[Collector], bytes], str]]] = {
    True: (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST),
    False: (prometheus_text.generate_latest, prometheus_text.CONTENT_TYPE_PLAIN_0_0_4),
}
"""True for OpenMetrics → function that writes the page, and its content type."""


class RequestRouter:
    """Router from request paths to pages.

    Each page is built at most once per :data:`FRESH_SECONDS`, from one reading of the metrics files.
    """

    def __init__(
        self, collector: Collector, history: History, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scrapes = ScrapeTracker()
        self._collector = collector
        self._history = history
        self._hang = HangProxy(directory)
        self._clock = clock
        self._made: dict[Hashable, Any] = {}
        self._made_at = float("-inf")

    def get_response(self, request: HttpRequest) -> Response | Awaitable[Response]:
        """Return the page at the request's path."""
        if request.path == "/metrics":
            self.scrapes.record_request(request.agent)
            return self._metrics(request)
        if request.path == HISTORY_PATH:
            return self._once(HISTORY_PATH, self._history_response)
        if request.path == HANG_PATH:
            return self._hang.fetch_response()
        if request.path == "/healthz":
            return Response(b"ok\n")
        return error_response(
            HTTPStatus.NOT_FOUND, f"There is nothing here but /metrics, {HANG_PATH}, {HISTORY_PATH} and /healthz."
        )

    def _metrics(self, request: HttpRequest) -> Response:
        try:
            families = families_in(request.query)
        except ValueError as error:
            return error_response(HTTPStatus.BAD_REQUEST, f"The query cannot be read: {error}.")
        everything = self._once(_COLLECTED, lambda: tuple(self._collector.collect()))
        wants_openmetrics = OPENMETRICS in request.accept
        page = (wants_openmetrics, families)
        if families and page not in self._made and len(self._made) >= MOST_PAGES:
            page = (wants_openmetrics, frozenset())  # a selection may receive more families than requested
        write, content_type = FORMATS[wants_openmetrics]
        return self._once(page, lambda: Response(write(Selection(everything, page[1])), content_type=content_type))

    def _history_response(self) -> Response:
        text = json.dumps(self._history.to_dict(), separators=(",", ":"))
        return Response(text.encode(), content_type="application/json")

    def _once(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the object cached under this name since the last reading of the metrics files, or make it."""
        if self._clock() - self._made_at >= FRESH_SECONDS:
            self._made.clear()
        if name not in self._made:
            is_first = not self._made
            self._made[name] = make()
            if is_first:
                self._made_at = self._clock()
        made: T = self._made[name]
        return made


def main(argv: list[str] | None = None) -> int:
    """Serve until a stop signal or the end of the parent process. Returns an exit code of the module."""
    arguments = argument_parser().parse_args(argv)
    try:
        listener = _listen_with_retry(arguments.address, arguments.port)
    except OSError as error:
        _log_line(_why_not(error, arguments.address, arguments.port))
        return Exit.FAILURE
    job = os.environ.get(Env.JOB) or LOCAL_JOB
    announcement = f"metrics of job {job} at http://{_readable(listener)}/metrics"
    history = History.load(arguments.directory)
    collectives = Collectives(arguments.directory)
    collectives.start()
    gpus = GpuSampler(arguments.directory)
    gpus.start()
    exposition = Exposition(arguments.directory, job, collectives=collectives, gpus=gpus)
    pages = RequestRouter(exposition, history, arguments.directory)
    reporter = _progress_reporter(arguments.directory)
    asyncio_utils.run(_serve(pages, listener, arguments.parent, announcement, history))
    if reporter is not None:
        reporter.stop()
    if Env.JOB in os.environ:
        _save_history(history)
    return Exit.SUCCESS


def _progress_reporter(directory: Path) -> Reporter | None:
    """Start to report progress to the TrainJob's status, if Kubeflow Trainer collects it."""
    if not os.environ.get(TRAINJOB_SERVER):
        return None
    from ddp_trainer.metrics.serve.trainjob import reporter  # noqa: PLC0415 - imports TLS, which few pods need

    return reporter(directory)


def _save_history(history: History) -> None:
    """Save the history where it outlives the pod's memory: in a file for the next container, and in the log."""
    history.keep()
    for line in lines(downsample(history.to_dict())):
        with contextlib.suppress(OSError):  # stderr is closed
            os.write(sys.stderr.fileno(), f"{line}\n".encode())


async def _serve(
    pages: RequestRouter, listener: socket.socket, parent: int, announcement: str, history: History
) -> None:
    """Serve until SIGTERM, SIGINT or the end of the parent. After SIGUSR1, end with the next regular scrape."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def over() -> None:
        pages.scrapes.over(max_wait_seconds(os.environ))
        if pages.scrapes.is_done:
            stop.set()

    loop.add_signal_handler(signal.SIGUSR1, over)
    server = Server(pages.get_response, _log_line).start(listener)
    _log_line(announcement)
    strangers = UnreadableFiles(history.directory, _log_line)
    # PR_SET_PDEATHSIG fires at the end of the thread that started us, not of the process.
    while os.getppid() == parent and not stop.is_set() and not pages.scrapes.is_done:
        history.sample_if_due()
        strangers.check_if_due()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PARENT_POLL_SECONDS)
    await server.close()


def _log_line(sentence: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        print(f"aggregate: {sentence}", file=sys.stderr, flush=True)


def _listen_with_retry(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            return listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _why_not(error: OSError, address: str, port: int) -> str:
    where = f"port {port}" + (f" of {address}" if address else "")
    if error.errno == errno.EADDRINUSE:
        way_out = f"choose another with --port or ${Env.METRICS_PORT}"
        return f"{where} is in use, so this pod has no metrics; training continues: {way_out}."
    if error.errno == errno.EACCES:
        way_out = f"choose one above 1023 with --port or ${Env.METRICS_PORT}"
        return f"{where} may not be used by this user, so this pod has no metrics; training continues: {way_out}."
    way_out = f"give an address of this host with --address or ${Env.METRICS_ADDRESS}"
    return f"cannot listen on {where} ({error}), so this pod has no metrics; training continues: {way_out}."


def _readable(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def default_address(environ: Mapping[str, str]) -> str:
    """Return the address to listen on; empty for all addresses of this host.

    Outside of a pod the default is the loopback address, because no NetworkPolicy separates the users of one machine.
    """
    in_pod = Env.POD_IP in environ or IN_KUBERNETES in environ
    return environ.get(Env.METRICS_ADDRESS) or ("" if in_pod else LOOPBACK)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"aggregate: {message[:1].upper()}{message[1:]}, so this pod has no metrics.\n")


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = _Parser(
        prog="python -m ddp_trainer aggregate", description="Serve the metrics of all ranks of this pod at /metrics."
    )
    directory = os.environ.get(Env.METRICS_DIR)
    parser.add_argument(
        "--directory",
        type=Path,
        default=directory,
        required=not directory,
        help=f"directory of the metrics files (default ${Env.METRICS_DIR})",
    )
    parser.add_argument(
        "--port",
        type=port_argument,
        default=os.environ.get(Env.METRICS_PORT) or str(Port.METRICS.value),
        help=f"port to listen on, 0 for any free one (default ${Env.METRICS_PORT}, else {Port.METRICS.value})",
    )
    parser.add_argument(
        "--address",
        default=default_address(os.environ),
        help=f"address to listen on (default ${Env.METRICS_ADDRESS}, else every one in a pod and {LOOPBACK} elsewhere)",
    )
    parser.add_argument(
        "--parent",
        type=int,
        default=os.getppid(),
        help="process id; this process ends with it (default: the process that started this one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
