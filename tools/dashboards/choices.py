"""What can be chosen at the top of the dashboards, what is marked on their graphs, and how one leads to the other.

``uid`` and the names of variables are an interface: links of alerts and of people hold on to them.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.metric_names import Dashboard
from tools.dashboards.grafana import chosen, chosen_many, link, marked, typed
from tools.dashboards.panel import Json, Query

JOB: Final = str(Dashboard.JOB)
RANKS: Final = str(Dashboard.RANKS)
FLEET: Final = str(Dashboard.FLEET)

_EVERY_POD: Final = "ddp_agent_up"
"""Served by each pod from its first scrape on."""

A_JOB: Final = (
    chosen("namespace", "Namespace", f"label_values({_EVERY_POD}, namespace)"),
    chosen("ddp_job", "Job", f'label_values({_EVERY_POD}{{namespace="$namespace"}}, ddp_job)'),
)
SOME_RANKS: Final = typed("rank", "Ranks (regular expression)", ".*")
NAMESPACES: Final = (
    chosen_many("namespaces", "Namespaces", f"label_values({_EVERY_POD}, namespace)"),
    # The job that one comes from, so that the buttons lead back to it.
    typed("namespace", "Namespace", "", hidden=True),
    typed("ddp_job", "Job", "", hidden=True),
)

MARKS: Final = (
    marked(
        "Group formed anew",
        Query("max(changes(ddp_rendezvous_round{<job>}[$__rate_interval])) > 0"),
        colour="orange",
        title="The group was formed anew",
        told="A rank or a node was lost, came back or was added; see What was lost.",
    ),
    marked(
        "Alerts",
        Query('max by (alertname, severity, rank) (ALERTS{<job>, alertstate="firing"})'),
        colour="red",
        title="{{alertname}}",
        told="{{severity}}; rank {{rank}}",
    ),
    marked(
        "Checkpoints",
        Query("max(changes(ddp_checkpoint_last_success_timestamp_seconds{<job>}[$__rate_interval])) > 0"),
        colour="blue",
        title="Checkpoint",
        told="A checkpoint became durable.",
        shown=False,
    ),
)

_A_ROW: Final = {"namespace": "${__data.fields.Namespace}", "ddp_job": "${__data.fields.Job}"}


def to_job() -> Json:
    """From a row of a table that has the columns Namespace and Job."""
    return link("Open the job", JOB, **_A_ROW)


def to_ranks_of_job() -> Json:
    """From a row of a table that has the columns Namespace and Job."""
    return link("Open its ranks", RANKS, **_A_ROW)


def to_rank(label: str) -> Json:
    """From the number of one rank; ``label`` is where Grafana finds its rank."""
    return link("Open the rank", RANKS, namespace="${namespace}", ddp_job="${ddp_job}", rank=label)
