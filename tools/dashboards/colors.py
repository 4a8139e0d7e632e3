"""Colours that mean the same thing on every dashboard."""

from __future__ import annotations

from typing import Final

PHASES: Final = {
    "data_wait": "orange",
    "h2d": "yellow",
    "forward": "light-blue",
    "backward": "blue",
    "comm_exposed": "purple",
    "optimizer": "light-green",
    "checkpoint": "red",
    "other": "text",
}
"""Phases of a step: computation is blue and green, waiting is not."""

STATES: Final = {
    "pending": "text",
    "rendezvous": "yellow",
    "spare": "purple",
    "starting": "light-blue",
    "running": "green",
    "stopping": "orange",
    "failed": "red",
    "succeeded": "blue",
}
"""States of a worker group."""

TIME: Final = {
    "productive": "green",
    "scheduling": "text",
    "suspended": "light-blue",
    "startup": "light-orange",
    "init": "orange",
    "rendezvous": "yellow",
    "checkpoint_load": "light-red",
    "data_wait": "dark-orange",
    "checkpoint_save": "red",
    "eval": "blue",
    "hang": "dark-red",
    "restart": "light-purple",
    "elastic_resize": "purple",
    "other": "semi-dark-yellow",
    "lost progress": "dark-purple",
}
"""States of a job's wall-clock time."""
