"""What ``bench peers`` has to know of a peer; each module of :mod:`bench.peers.launches` has one, as ``PEER``.

To add a peer, add such a module. If the peer needs its own API, also add a copy of ``loops/plain.py`` to ``loops`` with
the smallest change, and if it has packages, a file of pinned requirements to ``requirements``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers import launches

ROOT: Final = Path(__file__).parents[2]
LOOPS: Final = Path(__file__).parent / "loops"
REQUIREMENTS: Final = Path(__file__).parent / "requirements"
FAULTS: Final = ("worker_killed", "agent_killed", "rank_stopped", "rank_hung", "node_killed", "node_joins", "storm")


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, as a peer's commands need it."""

    folder: Path
    ports: tuple[int, ...]
    """Free ports, three of them."""
    python: str
    loop: str
    """Path of the script."""
    fast: bool = True
    """Use the fastest documented settings, and not the defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Set-up of a peer. There are two nodes with one worker each, or one node if no other has come."""

    title: str
    node: Callable[[Job, int], Command]
    """Process of a node, by the number of the node: its agent."""
    services: Callable[[Job], tuple[Command, ...]] = lambda _: ()
    """Processes to start before the nodes, outside of them."""
    loop: str = "plain.py"
    environment: str = ""
    """Name of its requirements and of its environment ``build/peer-NAME``; empty for torch of this environment."""
    beside: str = "\N{EN DASH}"
    """Processes beside agents and workers."""
    settings: str = ""
    """Its fastest documented settings, in words."""
    source: str = ""
    """Address of the page that its set-up follows."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Fault → why it cannot survive this, with the address of its own document; the fault is not injected."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Fault → why it did not recover, with the address of its own document or issue."""
    workers_left: int = 1
    """Workers that train once one of two nodes is lost."""
    restarts: bool = True
    """True if a node whose agent has died can come back."""
    needs_change: bool = False
    """True if the plain loop had to be changed."""

    def may_recover(self, fault: str) -> bool:
        """Return whether its own documents say nothing to the contrary."""
        return fault not in self.cannot and fault not in self.limits

    @property
    def python(self) -> Path:
        """Python of its environment."""
        return (
            ROOT / "build" / f"peer-{self.environment}" / "bin" / "python" if self.environment else Path(sys.executable)
        )

    def missing(self) -> str:
        """Return what is missing here, as one sentence; empty if nothing is."""
        if self.python.exists():
            return ""
        return f"{self.title} is not installed; run `make bench-peers`."

    def added_lines(self) -> int:
        """Return how many lines its loop has that the plain loop does not have."""
        return sum(line.startswith("+") and not line.startswith("+++") for line in self.diff())

    def diff(self) -> list[str]:
        """Return the change of the plain loop, as a unified diff."""
        import difflib

        plain, changed = ((LOOPS / name).read_text().splitlines() for name in ("plain.py", self.loop))
        return list(difflib.unified_diff(plain, changed, "plain.py", self.loop, lineterm=""))


def load_peers() -> dict[str, Peer]:
    """Return every peer by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(launches.__path__))
    return {name: importlib.import_module(f"{launches.__name__}.{name}").PEER for name in names}
