"""Limits of listeners, counted by themselves; tests of the listeners apply them to sockets."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

from ddp_trainer.net.limited_server import WINDOW_SECONDS, ConnectionLimits, RateLimitedLog, client_of


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::8", "2001:db8:0:1::/64"),
        ("fe80::7%eth0", "fe80::7"),
        ("127.0.0.1", ""),
        ("127.9.9.9", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("", ""),
    ],
)
def test_connections_count_by_the_host_that_they_come_from(address: str, client: str) -> None:
    assert client_of(address) == client


def test_one_address_leaves_room_for_others() -> None:
    limits = ConnectionLimits(total=4, per_address=2)
    assert [limits.try_acquire("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert limits.is_full_for("::ffff:192.0.2.1")
    assert not limits.is_full_for("192.0.2.2")
    assert [limits.try_acquire("192.0.2.2") for _ in range(3)] == [True, True, False]
    assert limits.is_full
    assert not limits.try_acquire("192.0.2.3")
    limits.release("::ffff:192.0.2.1")
    assert limits.try_acquire("192.0.2.3")


def test_the_loopback_may_use_all_of_the_total() -> None:
    limits = ConnectionLimits(total=8, per_address=2)
    assert [limits.try_acquire("127.0.0.1") for _ in range(9)] == [True] * 8 + [False]


def test_no_order_of_connections_passes_a_limit() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    limits = ConnectionLimits(total=6, per_address=3)
    addresses = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2", "127.0.0.1"]
    held: list[str] = []
    for _ in range(5000):
        if held and draw.random() < 0.45:
            limits.release(held.pop(draw.randrange(len(held))))
        elif limits.try_acquire(address := draw.choice(addresses)):
            held.append(address)
        by_client = Counter(map(client_of, held))
        assert len(held) <= 6
        assert all(count <= 3 for client, count in by_client.items() if client)
        assert limits.is_full == (len(held) == 6)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fits"),
    [(256, 256, 4096, 192), (128, 512, 400, 400), (256, 256, 64, 64), (32, 32, 64, 1)],
)
def test_connections_fit_into_the_limit_of_open_files(soft: int, hard: int, wanted: int, fits: int) -> None:
    script = (
        "import resource, sys; from ddp_trainer.net.limited_server import apply_fd_limit;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        f"print(apply_fd_limit({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert output.split() == [str(fits), str(hard)]


def test_a_log_writes_its_lines_a_minute_and_then_what_it_left_out() -> None:
    now = 1000.0
    lines: list[str] = []
    log = RateLimitedLog(lines_per_minute=3, write=lines.append, clock=lambda: now)
    for number in range(100):
        log.write(f"line {number}")
    assert lines == ["line 0", "line 1", "line 2"]
    now += WINDOW_SECONDS
    log.write("later")
    assert len(lines) == 5
    assert lines[3].startswith("97 ")
    assert lines[4] == "later"
    log.flush()
    assert len(lines) == 5  # nothing was left out since
