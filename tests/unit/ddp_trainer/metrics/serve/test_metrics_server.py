"""The HTTP server with slow, malformed and many requests, and the last scrape of a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client import core
from prometheus_client.registry import Collector

from ddp_trainer.common.listener import listen
from ddp_trainer.metrics.aggregator import FRESH_SECONDS, MOST_PAGES, RequestRouter
from ddp_trainer.metrics.serve import server
from ddp_trainer.metrics.serve.history import History
from ddp_trainer.metrics.serve.server import HttpRequest, Response, ScrapeTracker, Server
from tests.support.clocks import Clock

NOWHERE = Path("/nonexistent")
NO_HISTORY = History(NOWHERE)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def hello(request: HttpRequest) -> Response:
    return Response(f"hello {request.path} {request.accept}".encode())


@asynccontextmanager
async def serving(
    respond: Callable[[HttpRequest], Response] = hello, deadline_seconds: float = 60.0
) -> AsyncIterator[Callable[[], Awaitable[Connection]]]:
    """Run a server; yields a function that connects to it."""
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    running = Server(respond, print, deadline_seconds=deadline_seconds).start(listener)
    async with asyncio.timeout(60):
        yield lambda: asyncio.open_connection(*address)
        await running.close()


async def ask(connection: Connection, request: bytes) -> bytes:
    reader, writer = connection
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def answer_to(request: bytes) -> bytes:
    async with serving() as connect:
        return await ask(await connect(), request)


async def test_a_get_is_answered_whole() -> None:
    answer = await answer_to(b"GET /metrics?a=b HTTP/1.1\r\nHost: a\r\naccept:  text/plain \r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"hello /metrics text/plain"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


async def test_a_head_is_answered_without_a_body() -> None:
    answer = await answer_to(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"Content-Length: 15\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"\x16\x03\x01 TLS hello\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_a_sentence(request_: bytes, status: HTTPStatus) -> None:
    answer = await answer_to(request_)
    assert answer.startswith(f"HTTP/1.1 {status.value} ".encode())
    assert answer.endswith(b".\n")


async def test_a_client_that_dribbles_is_cut_off_at_the_deadline() -> None:
    async with serving(deadline_seconds=0.2) as connect:
        reader, writer = await connect()
        writer.write(b"GET /metr")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        assert answer == b""
        writer.close()
        assert (await ask(await connect(), b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello / ")


async def test_a_client_that_does_not_read_is_cut_off_at_the_deadline() -> None:
    async with serving(respond=lambda _: Response(b"x" * (32 << 20)), deadline_seconds=0.2) as connect:
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        writer.transport.abort()


class Counting(Collector):
    """Collector that counts its collections."""

    def __init__(self) -> None:
        self.collected = 0

    def collect(self) -> list[core.CounterMetricFamily]:
        self.collected += 1
        return [core.CounterMetricFamily("collected", "Times.", value=self.collected)]


def page(pages: RequestRouter, query: str = "", *, path: str = "/metrics", accept: str = "") -> Response:
    answer = pages.get_response(HttpRequest("GET", path, accept, query=query))
    assert isinstance(answer, Response)
    return answer


def test_a_flood_of_scrapes_reads_the_boards_once_per_interval() -> None:
    collector, clock = Counting(), Clock(0.0)
    pages = RequestRouter(collector, NO_HISTORY, NOWHERE, clock=clock)
    for _ in range(100):
        page(pages)
    assert collector.collected == 1
    clock.now += FRESH_SECONDS
    assert b"collected_total 2.0" in page(pages).body


def test_selections_without_end_read_the_boards_once_per_interval_and_make_few_pages() -> None:
    collector = Counting()
    pages = RequestRouter(collector, NO_HISTORY, NOWHERE, clock=lambda: 0.0)
    bodies = [page(pages, f"name[]=unknown_{number}").body for number in range(1000)]
    assert collector.collected == 1
    assert bodies[0] == b""
    assert bodies.count(b"") < MOST_PAGES
    assert b"collected_total 1.0" in bodies[-1]  # all families, rather than a page for each query


def test_a_query_of_many_fields_is_refused_with_a_sentence() -> None:
    assert page(RequestRouter(Counting(), NO_HISTORY, NOWHERE), "name[]=a&" * 900).status is HTTPStatus.BAD_REQUEST


class TwoFamilies(Collector):
    """Two families, of which one is a histogram."""

    def collect(self) -> list[core.Metric]:
        step = core.GaugeMetricFamily("ddp_step", "Where it is.", labels=["rank"])
        step.add_metric(["0"], 7)
        took = core.HistogramMetricFamily("ddp_took_seconds", "How long.", buckets=[("+Inf", 2.0)], sum_value=3.0)
        return [step, core.CounterMetricFamily("ddp_steps", "Steps.", value=9), took]


TOOK = "ddp_took_seconds"


@pytest.mark.parametrize(
    ("query", "series"),
    [
        ("name[]=ddp_step", ['ddp_step{rank="0"} 7.0']),
        ("name%5B%5D=ddp_steps_total&name[]=ddp_step&other=1", ['ddp_step{rank="0"} 7.0', "ddp_steps_total 9.0"]),
        ("name[]=ddp_took_seconds", [TOOK + rest for rest in ('_bucket{le="+Inf"} 2.0', "_count 2.0", "_sum 3.0")]),
        ("name[]=ddp_took_seconds_sum", ["ddp_took_seconds_sum 3.0"]),
        ("name[]=ddp_unknown", []),
    ],
)
def test_a_query_selects_families_by_name(query: str, series: list[str]) -> None:
    answer = page(RequestRouter(TwoFamilies(), NO_HISTORY, NOWHERE), query)
    assert [line for line in answer.body.decode().splitlines() if not line.startswith("#")] == series


def test_a_selection_does_not_narrow_the_next_full_scrape() -> None:
    pages = RequestRouter(TwoFamilies(), NO_HISTORY, NOWHERE, clock=lambda: 0.0)
    for query, lines in (("name[]=ddp_step", 3), ("", 11), ("name[]=ddp_step", 3)):
        assert len(page(pages, query).body.splitlines()) == lines


def test_openmetrics_is_served_on_request() -> None:
    pages = RequestRouter(Counting(), NO_HISTORY, NOWHERE)
    answer = page(pages, accept="application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
    assert answer.body.endswith(b"# EOF\n")
    assert answer.content_type.startswith("application/openmetrics-text")
    assert page(pages, accept="*/*").content_type.startswith("text/plain; version=0.0.4")


def test_there_are_three_pages() -> None:
    pages = RequestRouter(core.CollectorRegistry(), NO_HISTORY, NOWHERE)
    assert json.loads(page(pages, path="/history").body)["series"] == []
    assert page(pages, path="/healthz").body == b"ok\n"
    assert page(pages, path="/").status is HTTPStatus.NOT_FOUND


AGENT = "Prometheus/3.5.0"


def test_an_exporter_that_was_scraped_every_fifteen_seconds_waits_for_one_more(clock: Clock) -> None:
    scrapes = ScrapeTracker(clock)
    for moment in (100.0, 115.0):
        clock.now = moment
        scrapes.record_request(AGENT)
        assert not scrapes.is_done
    clock.now = 120.0
    scrapes.over(server.MOST_SECONDS)
    assert not scrapes.is_done
    clock.now = 130.0
    scrapes.record_request("kubectl")
    assert not scrapes.is_done
    scrapes.record_request(AGENT)
    assert not scrapes.is_done, "the answer is on its way"
    clock.now = 131.0
    assert scrapes.is_done


@pytest.mark.parametrize(("before", "most", "waits"), [(15.0, 20.0, 20.0), (60.0, 20.0, 20.0), (2.0, 20.0, 3.5)])
def test_it_waits_for_two_intervals_or_as_long_as_it_may(
    clock: Clock, before: float, most: float, waits: float
) -> None:
    scrapes = ScrapeTracker(clock)
    scrapes.record_request(AGENT)
    clock.now += before
    scrapes.record_request(AGENT)
    clock.now += 1.0
    scrapes.over(most)
    clock.now += waits - 0.1
    assert not scrapes.is_done
    clock.now += 0.2
    assert scrapes.is_done


@pytest.mark.parametrize(
    ("agents", "silence"), [([], 0.0), ([AGENT], 0.0), (["curl/8", "curl/8", "curl/8"], 0.0), ([AGENT, AGENT], 60.0)]
)
def test_neither_irregular_clients_nor_a_prometheus_that_is_gone_are_waited_for(
    clock: Clock, agents: list[str], silence: float
) -> None:
    scrapes = ScrapeTracker(clock)
    for agent in agents:
        scrapes.record_request(agent)
        clock.now += 5.0
    clock.now += silence
    scrapes.over(server.MOST_SECONDS)
    assert scrapes.is_done


@pytest.mark.parametrize(
    ("option", "seconds"),
    [("", 20.0), ("0", 0.0), ("45", 45.0), ("-1", 20.0), ("nan", 20.0), ("1e9", 20.0), ("x", 20.0)],
)
def test_the_job_sets_the_longest_wait(option: str, seconds: float) -> None:
    assert server.max_wait_seconds({"DDP_LAST_SCRAPE": option}) == seconds
