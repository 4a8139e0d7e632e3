"""Jobs that fail at the start: they complete no step, or find a full disk.

They need no cluster, so ``bench why`` also runs them on this machine. Scripts print
:data:`~tests.cluster.staged_incidents.BEGINS` when their failure begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubectl_ddp.why.model import Cause
from tests.cluster.staged_incidents import BEGINS
from tests.cluster.staging import HALF, Stage

_TWO_RANKS: Final = ("--nproc", "2", "--memory", "1Gi")
_TWO_NODES: Final = ("--nnodes", "2", *HALF)
_ONCE: Final = ("--max-restarts", "0")

_PREPARED: Final = r"""
import fcntl, os, socket, subprocess, sys, tempfile, threading, time, urllib.request
rank = int(os.environ["RANK"])

def begin():
    print("BEGINS", flush=True)

def load(text):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "preparing.py"), "w") as module:
        module.write(text)
    sys.path.insert(0, folder)
    import preparing

def send(server, seconds):
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    for _ in range(seconds):
        connection.sendall(bytes(1 << 20))
        time.sleep(1)
    time.sleep(0 if seconds else 3600)
    connection.close()

address = os.path.join(tempfile.gettempdir(), "address")

def offer(seconds):
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=send, args=(server, seconds), daemon=True).start()
    with open(address + ".new", "w") as file:
        file.write(f"http://127.0.0.1:{server.getsockname()[1]}/weights")
    os.rename(address + ".new", address)

def download():
    while not os.path.exists(address):
        time.sleep(0.1)
    urllib.request.urlopen(open(address).read()).read()
""".replace("BEGINS", BEGINS)
_LATE: Final = f"""{_PREPARED}
import torch, torch.distributed as dist
OTHERS
if rank == 1:
    begin()
    DO
dist.init_process_group("gloo")
dist.barrier()
"""
"""Rank 1 runs other code before it joins the process group."""
_LOCK: Final = f"""{_PREPARED}
import torch, torch.distributed as dist
lock = open(os.path.join(tempfile.gettempdir(), "data.lock"), "w")
while rank == 1 and not os.path.exists(lock.name + ".held"):
    time.sleep(0.1)
if rank == 1:
    begin()
fcntl.flock(lock, fcntl.LOCK_EX)
open(lock.name + ".held", "w").close()
dist.init_process_group("gloo")
"""
_IMPORT: Final = f"""{_PREPARED}
begin()
import flash_attention
"""
_FOUR: Final = f"""{_PREPARED}
import torch.distributed as dist
begin()
dist.init_process_group("gloo", rank=rank, world_size=4)
"""
_APART: Final = f"""{_PREPARED}
import torch, torch.distributed as dist
begin()
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(1))
"""
_NESTED: Final = f"""{_PREPARED}
if "INNER" in os.environ:
    raise ValueError("the 7th layer has no name")
begin()
command = ["torchrun", "--nproc-per-node", "2", __file__]
sys.exit(subprocess.run(command, env={{**os.environ, "INNER": "1"}}).returncode)
"""
_NESTED_HANG: Final = f"""{_PREPARED}
begin()
command = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "this"]
sys.exit(subprocess.run(command).returncode)
"""
_FILL: Final = f"""{_PREPARED}
begin()
with open(os.path.join(tempfile.gettempdir(), "full"), "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""
_SHARED: Final = f"""{_PREPARED}
import torch
begin()
kept = [torch.ones(1 << 20).share_memory_() for _ in range(64)]
"""
_MAPPED: Final = f"""{_PREPARED}
import mmap
begin()
file = open("/dev/shm/batch", "w+b")
file.truncate(64 << 20)
mapped = mmap.mmap(file.fileno(), 0)
for start in range(0, len(mapped), mmap.PAGESIZE):
    mapped[start] = 1
"""
_READ_ONLY: Final = f"""{_PREPARED}
import torch
begin()
torch.save({{"epoch": 1}}, "/usr/local/snapshot.pt")
"""
_SLOW: Final = f"""{_PREPARED}
begin()
BEFORE
import torch, torch.distributed as dist
dist.init_process_group("gloo")
AFTER
dist.barrier()
"""
"""One rank needs a minute to start while the other one waits."""
_COMPUTES: Final = r"import time\nuntil = time.time() + 60\nwhile time.time() < until: pass"


def _late(says: str, do: str, others: str = "") -> Stage:
    return _hang(says, _LATE.replace("DO", do).replace("OTHERS", f"if rank != 1: {others}" if others else ""))


def _hang(says: str, script: str) -> Stage:
    return Stage(Cause.HANG, 14, says, _TWO_RANKS, script)


def _full(says: str, script: str, here: str, *, code: int = 10) -> Stage:
    return Stage(Cause.ERROR, code, says, _ONCE, script, here=here)


def _slow(*, before: str = "", after: str = "") -> Stage:
    script = _SLOW.replace("BEFORE", before).replace("AFTER", after)
    words = (*_TWO_RANKS, *_ONCE)
    return Stage(Cause.FINISHED, 0, "has succeeded", words, script, is_honest=True)


STARTS: Final[Mapping[str, Stage]] = {
    "init-late": _late("rank 1 on init-late-worker-0, which has not reached init_process_group", "time.sleep(3600)"),
    "init-imports": _late("preparing.py:1", 'load("import time; time.sleep(3600)")'),
    "init-download": _late("has not reached init_process_group; at init-download.py", "download()", "offer(0)"),
    "init-lock": _hang("has not reached init_process_group; at init-lock.py", _LOCK),
    "init-world-size": _hang("the script asks for a world of 4 ranks", _FOUR),
    "import-error": Stage(Cause.ERROR, 10, "No module named 'flash_attention'", script=_IMPORT),
    "ranks-apart": Stage(Cause.FINISHED, 0, "never worked together", _TWO_NODES, _APART),
    "nested-launcher": Stage(Cause.ERROR, 10, "torchrun, which the script starts", (*_TWO_RANKS, *_ONCE), _NESTED),
    "nested-launcher-waits": Stage(Cause.NESTED_LAUNCHER, 0, "started torchrun", _TWO_RANKS, _NESTED_HANG),
    "full-scratch": Stage(
        Cause.ERROR,
        10,
        "/full-scratch/ddp-",
        _ONCE,
        _FILL,
        is_local=True,
        here="mount -t tmpfs -o size=24m scratch $TMPDIR",
    ),
    "full-shm": _full("--shm", _SHARED, "mount -t tmpfs -o size=24m shm /dev/shm"),
    "full-shm-mapped": _full("--shm", _MAPPED, "mount -t tmpfs -o size=24m shm /dev/shm", code=11),
    "read-only": _full(
        "is read-only", _READ_ONLY, "mount --bind /usr/local /usr/local && mount -o remount,bind,ro /usr/local"
    ),
    "slow-imports": _slow(before=f'if rank == 1: load("{_COMPUTES}")'),
    "slow-download": _slow(before="download() if rank == 1 else offer(60)"),
    "slow-first-rank": _slow(after="download() if rank == 0 else offer(60)"),
}
