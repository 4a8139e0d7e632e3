"""Pods that answer what they like: each answer is read within its limits, or refused in one sentence."""

from __future__ import annotations

import collections
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ddp_report import series
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.pod_output import served
from kubectl_ddp.backends.cluster.read.reflector import lines
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.hang import collector
from kubectl_ddp.status.job_state import group_state
from kubectl_ddp.status.metrics_parser import iter_samples, parse
from kubectl_ddp.util.bounded_response import POD_ANSWER, ResponseRejected, read_response
from tests.support.api_server import Answer, ApiServer
from tests.support.hostile_answers import HOSTILE, hostile, mutations
from tests.unit.ddp_controller.controller_jobs import pod
from tests.unit.kubectl_ddp.backends.cluster.test_cluster_backend import Chunks

ANSWERS = int(os.environ.get("DDP_HOSTILE_ANSWERS", "20000"))
"""Number of hostile bodies; ``DDP_HOSTILE_ANSWERS=100000`` takes 6 s of processor time."""
METRICS = "/api/v1/namespaces/team/pods/digits-0:9464/proxy/metrics"
LIMITS = replace(POD_ANSWER, most_seconds=1.0)


def test_no_answer_of_a_pod_ends_a_reader_or_takes_long() -> None:
    slowest = 0.0
    for body in itertools.islice(mutations(seed=37), ANSWERS):
        began = time.thread_time()
        text = read_response(iter([body]), POD_ANSWER).decode(errors="replace")
        group_state(parse(text))
        collections.deque(iter_samples(text), maxlen=0)
        assert isinstance(collector.read("digits-0", text), str | collector.PodReport)
        series.read(text, "digits-0")
        chunks = Chunks(*(body[at : at + 1000] for at in range(0, len(body), 1000)))
        assert all(len(line) <= 512 for line in lines(chunks, 512))
        slowest = max(slowest, time.thread_time() - began)
    assert slowest < 0.5


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_refused_in_one_sentence_and_in_little_time(server: ApiServer, api: Api, name: str) -> None:
    server.next(f"GET {METRICS}", hostile(name))
    before = time.thread_time()
    with pytest.raises(Unreachable) as refused:
        served(api, pod(0), "/metrics", LIMITS)
    assert refused.value.message.startswith("Pod 'digits-0' does not answer with its metrics: ")
    assert len(refused.value.message) < 500
    assert time.thread_time() - before < 1.0


def test_an_answer_within_the_limits_is_whole(server: ApiServer, api: Api) -> None:
    text = "ddp_step 1\n" * 10_000
    server.next(f"GET {METRICS}", Answer(200, text))
    assert served(api, pod(0), "/metrics") == text


def test_each_limit_refuses_without_reading_on() -> None:
    def endless(chunk: bytes, pause: float = 0.0) -> Iterator[bytes]:
        for _ in range(100):
            time.sleep(pause)
            yield chunk
        raise AssertionError("it was read to its end")

    limits = {
        "100 KiB": (replace(LIMITS, most_bytes=100 << 10), b"x" * 10_000, 0.0),
        "50 lines": (replace(LIMITS, most_lines=50), b"\n", 0.0),
        "0.05 s": (replace(LIMITS, most_seconds=0.05), b"x", 0.01),
        "0 s of processor time": (replace(LIMITS, most_processor_seconds=0.0), b"x", 0.0),
    }
    for words, (limit, chunk, pause) in limits.items():
        with pytest.raises(ResponseRejected, match=words):
            read_response(endless(chunk, pause), limit)
