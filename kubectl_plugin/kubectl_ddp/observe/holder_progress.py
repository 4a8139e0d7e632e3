"""Expected end and minimum size of the jobs that hold a quota, from their objects and the metrics of their pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, Forbidden
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import is_resizable
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.scrape import ScrapeLimit, observe_all
from kubectl_ddp.preflight.kueue_forecast import HolderProgress, QuotaHolder
from kubectl_ddp.util.concurrency import each

_MOST: Final = 16
"""Maximum number of jobs to read."""
_PATIENCE_SECONDS: Final = 1.0
_SCRAPE: Final = ScrapeLimit(of_each=2, in_all=32)


def with_progress(backend: Backend, holders: Sequence[QuotaHolder]) -> tuple[list[QuotaHolder], tuple[str, ...]]:
    """Return the holders with their progress, and a sentence for each reading that was denied.

    At most 16 jobs are read: those with the lowest priority, and of these the newest. Jobs of other tools have no
    progress.
    """
    asked = sorted(holders, key=lambda holder: holder.end_order)[:_MOST]
    answers = dict(zip((holder.uid for holder in asked), each(partial(_read, backend), asked), strict=True))
    found = {uid: answer for uid, answer in answers.items() if isinstance(answer, Snapshot)}
    states = observe_all(backend, [*found.values()], patience=_PATIENCE_SECONDS, most=_SCRAPE, for_table=True)
    progress = {
        uid: HolderProgress(state.eta_seconds, _least(snapshot))
        for (uid, snapshot), state in zip(found.items(), states, strict=True)
    }
    denied = [f"{answer.message.rstrip('.')}." for answer in answers.values() if isinstance(answer, Forbidden)]
    told = [replace(holder, progress=progress.get(holder.uid, holder.progress)) for holder in holders]
    return told, tuple(dict.fromkeys(denied))


def _read(backend: Backend, holder: QuotaHolder) -> Snapshot | DdpError:
    try:
        return backend.job(holder.name, events=False, namespace=holder.namespace)
    except DdpError as error:
        return error


def _least(snapshot: Snapshot) -> int | None:
    """Return the minimum number of nodes to which a job can be scaled in its queue; ``None`` if it cannot be."""
    can_scale = job_kinds.engine_of(snapshot.job).is_scalable and is_resizable(snapshot.job)
    return job_kinds.bounds(snapshot.job)[0] if can_scale else None
