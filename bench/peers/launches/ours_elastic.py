"""This project's launcher with ``elastic.run``."""

from __future__ import annotations

import dataclasses

from bench.peers.launches import ours_plain

PEER = dataclasses.replace(
    ours_plain.PEER, title="elastic.run", loop="elastic_run.py", needs_change=True, source="library.md"
)
