"""Variables, annotations and links of the dashboards.

``uid`` and the names of variables are an interface: links in alerts and bookmarks depend on them.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.metric_names import Dashboard
from tools.dashboards.grafana import chosen_many, data_link, query_annotation, query_variable, text_variable
from tools.dashboards.panel import Json, Query

JOB: Final = str(Dashboard.JOB)
RANKS: Final = str(Dashboard.RANKS)
FLEET: Final = str(Dashboard.FLEET)

_EVERY_POD: Final = "ddp_agent_up"
"""Metric that each pod serves from its first scrape."""

A_JOB: Final = (
    query_variable("namespace", "Namespace", f"label_values({_EVERY_POD}, namespace)"),
    query_variable("ddp_job", "Job", f'label_values({_EVERY_POD}{{namespace="$namespace"}}, ddp_job)'),
)
SOME_RANKS: Final = text_variable("rank", "Ranks (regular expression)", ".*")
NAMESPACES: Final = (
    chosen_many("namespaces", "Namespaces", f"label_values({_EVERY_POD}, namespace)"),
    # The job that one comes from, so that the buttons lead back to it.
    text_variable("namespace", "Namespace", "", hidden=True),
    text_variable("ddp_job", "Job", "", hidden=True),
)

MARKS: Final = (
    query_annotation(
        "Group formed anew",
        Query("max(changes(ddp_rendezvous_round{<job>}[$__rate_interval])) > 0"),
        colour="orange",
        title="The worker group re-formed",
        text="A rank or a node was lost, came back or was added; see What was lost.",
    ),
    query_annotation(
        "Alerts",
        Query('max by (alertname, severity, rank) (ALERTS{<job>, alertstate="firing"})'),
        colour="red",
        title="{{alertname}}",
        text="{{severity}}; rank {{rank}}",
    ),
    query_annotation(
        "Checkpoints",
        Query("max(changes(ddp_checkpoint_last_success_timestamp_seconds{<job>}[$__rate_interval])) > 0"),
        colour="blue",
        title="Checkpoint",
        text="A checkpoint became durable.",
        shown=False,
    ),
)

_A_ROW: Final = {"namespace": "${__data.fields.Namespace}", "ddp_job": "${__data.fields.Job}"}


def to_job() -> Json:
    """Link from a table row with the columns Namespace and Job."""
    return data_link("Open the job", JOB, **_A_ROW)


def to_ranks_of_job() -> Json:
    """Link from a table row with the columns Namespace and Job."""
    return data_link("Open its ranks", RANKS, **_A_ROW)


def to_rank(label: str) -> Json:
    """Return a link from the number of a rank. ``label`` is the label that holds the rank."""
    return data_link("Open the rank", RANKS, namespace="${namespace}", ddp_job="${ddp_job}", rank=label)
