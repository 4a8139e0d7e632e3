"""Nodes that run and are in no worker group, with the reasons that their launchers report.

:func:`find_outside_nodes` reads the metrics of the pods; ``status``, ``list`` and ``why`` show the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.constants import GroupState, OutsideReason
from ddp_trainer.common.metric_names import Metric, MetricLabel
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.util.text_table import duration

LEAST_SECONDS: Final = 20.0
"""Seconds outside of a group that a start may take."""

_TEXTS: Final[Mapping[str, tuple[str, str, str]]] = {
    OutsideReason.NAME_RESOLUTION: (
        "DNS",
        "the store's name does not resolve",
        "Check the DNS of its node, and that the namespace's NetworkPolicies allow DNS (port 53).",
    ),
    OutsideReason.CONNECTION: (
        "connection",
        "the store's name resolves, and the store does not accept a connection",
        "Check the NetworkPolicies between the pods of the job, and the network of its node.",
    ),
    OutsideReason.HANDSHAKE: (
        "handshake",
        "the server at the store's address is not the store of this run",
        "Another program answers there: see that the Service of the store selects the store's pod alone.",
    ),
    OutsideReason.SECRET: (
        "secret",
        "the store has another secret",
        "Delete the pod: its replacement mounts the Secret of the run.",
    ),
    OutsideReason.NAME_TAKEN: (
        "name taken",
        "another connection holds its name",
        "The store admits it once the other connection is lost; its log names the other node.",
    ),
    OutsideReason.PREFLIGHT: ("preflight", "its preflight fails", "Its log has the result of the preflight."),
    OutsideReason.WAITING: ("waiting", "it waits for a place in the group", ""),
}
"""Reason → one word for a column, the end of a sentence, and a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideNode:
    """A node that runs and is in no worker group."""

    pod: str
    reason: str
    """Member of :class:`~ddp_trainer.common.constants.OutsideReason`."""
    since: float
    """Unix time since which it is in no group."""

    @property
    def is_fault(self) -> bool:
        """True unless the node only waits for a place in the group."""
        return self.reason != OutsideReason.WAITING

    @property
    def word(self) -> str:
        """The reason in one or two words."""
        return _TEXTS[self.reason][0]

    @property
    def sentence(self) -> str:
        """The reason as the end of a sentence."""
        return _TEXTS[self.reason][1]

    @property
    def fix(self) -> str:
        """What helps, in one sentence."""
        return _TEXTS[self.reason][2]

    def describe(self, now: float) -> str:
        """Return node, time and reason, without a full stop."""
        return f"{self.pod} for {duration(max(0.0, now - self.since))}: {self.sentence}"


def overdue(nodes: Iterable[OutsideNode], now: float) -> list[OutsideNode]:
    """Return the nodes that are outside of the group for longer than a start takes."""
    return [node for node in nodes if now - node.since > LEAST_SECONDS]


def find_outside_nodes(told: Mapping[str, Samples], states: Mapping[str, str]) -> tuple[OutsideNode, ...]:
    """Return the nodes in no group. While there is no group, a node that only waits for one is not among them.

    Args:
        told: Name of a pod → its metrics.
        states: Name of a pod → state of its worker group.
    """
    has_group = not {GroupState.RUNNING, GroupState.SUCCEEDED}.isdisjoint(states.values())
    return tuple(
        OutsideNode(pod=pod, reason=reason, since=since)
        for pod, said in sorted(told.items())
        if states[pod] in {GroupState.PENDING, GroupState.RENDEZVOUS}
        for reason, since in said.by(MetricLabel.REASON, Metric.OUTSIDE_SINCE).items()
        if since and reason in _TEXTS and (has_group or reason != OutsideReason.WAITING)
    )
