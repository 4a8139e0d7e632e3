"""Handle of a submitted job: its state, its output, and its changes."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import Where, backend_to_change
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.observe import job_results
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.log_stream import Line, RankFilter, follow_logs, rank_filter, read, since_time
from kubectl_ddp.observe.scrape import Sample, observe, read_samples
from kubectl_ddp.observe.waiting import DELETED, parse_wait_condition, wait_for, wait_until_deleted
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.entry_points import load_entry_point
from kubectl_ddp.util.process import thread_location

if TYPE_CHECKING:
    from os import PathLike


WriteReport = Callable[[Backend, str, Path, Callable[[str], None]], None]
"""Entry point that writes the report of a job to a file, and calls the last argument with warnings."""

_LOG: Final = logging.getLogger("kubectl_ddp")


class JobStates(list[JobState]):
    """States of jobs; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        """Return the table of ``list -o wide``."""
        return job_table(self, time.time(), wide=True).render_html()


class Job:
    """Handle of one job, returned by :class:`~kubectl_ddp.client.client.Client`.

    It keeps no state: every method and :attr:`state` read the job again, and raise NotFound once it is deleted.
    """

    def __init__(self, backend: Backend, name: str, where: Where) -> None:
        self._backend = backend
        self._where = where
        self.name: Final = name
        self.where: Final = backend.where
        """Context of the kubeconfig, or ``local``."""
        self.namespace: Final = backend.namespace
        """Namespace; empty on this machine."""

    def __repr__(self) -> str:
        """Return name and place, without a request."""
        place = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"Job({self.name!r}, where={self.where!r}{place})"

    def _repr_html_(self) -> str:
        """Return the current state as a table for notebooks, or name and place if the job cannot be read."""
        try:
            return JobStates([self.status()])._repr_html_()
        except DdpError as error:
            return f"<code>{html.escape(repr(self))}</code> {html.escape(error.message)}"

    @property
    def state(self) -> State:
        """Current state, a string such as ``Running``."""
        return self.status().state

    def status(self) -> JobState:
        """Return state, progress, ranks and first error, with the current metrics of the pods."""
        with self._location():
            snapshot = self._backend.job(self.name, events=False)
            state = observe(self._backend, snapshot)
            persist_result(self._backend, snapshot.job, state)
        return state

    def wait(
        self,
        timeout: float | None = None,
        *,
        condition: str = "complete",
        progress: Callable[[JobState], None] | None = None,
    ) -> JobState:
        """Wait until the job has succeeded, or meets another condition, and return its state then.

        Args:
            timeout: Maximum time to wait, in seconds (default: unlimited). The job continues after it.
            condition: ``complete``, ``running``, ``failed``, ``suspended``, ``step=N`` or ``world-size=N``.
            progress: Called with every state on the way, about once a second. In a notebook,
                ``lambda _: shown.update(job)`` shows it, with ``shown = display(job, display_id=True)``.

        Raises:
            JobFailed: If the code of the job failed instead.
            InfrastructureFailed: If a node, a preemption, memory or the network failed the job instead.
            Cancelled: If the job was deleted or suspended instead.
            TimedOut: If the timeout has passed.
        """
        goal = parse_wait_condition(condition)
        if goal is DELETED:
            raise UsageError("wait() returns a state, and a deleted job has none.", hint="Use delete(wait=True).")
        with self._location():
            return wait_for(self._backend, self.name, goal, timeout=timeout, seen=progress)

    def logs(
        self,
        rank: int | str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> Generator[Line, None, None]:
        """Return the lines of the ranks as an iterator. Each has ``rank``, ``pod``, ``time`` and ``message``.

        Args:
            rank: ``0``, ``"0-7"``, ``"0,3"``, ``"failed"`` or ``"all"`` (default: rank 0, and errors of any).
            follow: True to wait for new lines, through restarts, until the job ends. Closing the iterator, or dropping
                it, ends the connections.
            tail: Begin with the last lines, so many.
            since: Begin with what was written so many seconds ago.

        Raises:
            UsageError: If ``rank`` has another form.
            NotFound: If the job cannot have such a rank.
        """
        with self._location():
            snapshot = self._backend.job(self.name)
            state = job_state(snapshot, {}, where=self.where)
            persist_result(self._backend, snapshot.job, state)
            ranks = rank_filter(None if rank is None else str(rank), state)
        return self._lines(ranks, None if since is None else since_time(since), tail, follow=follow)

    def _lines(
        self, ranks: RankFilter, since: str | None, tail: int | None, *, follow: bool
    ) -> Generator[Line, None, None]:
        yield from (follow_logs if follow else read)(self._backend, self.name, ranks, tail=tail, since=since)

    def scale(self, nnodes: int) -> None:
        """Set the number of nodes; ``wait(condition="world-size=N")`` waits for the ranks. Raises UsageError."""
        with self._location():
            self._to_change().scale(self.name, nnodes)

    def suspend(self) -> None:
        """Stop the pods and keep the job. Raises UsageError if it has ended."""
        with self._location():
            backend = self._to_change()
            job_results.suspend(backend, self.name)
            if keeps_checkpoints_in_pods(backend.job(self.name, events=False).job):
                _LOG.warning("Job %s has no checkpoint claim: it will start from the beginning.", self.name)

    def resume(self) -> str | None:
        """Resume a suspended job, and return the queue in which it waits, if any. Raises UsageError if it has ended."""
        with self._location():
            return self._to_change().suspend(self.name, suspended=False)

    def delete(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Delete the job and everything that it owns.

        Args:
            wait: True to wait until it is gone.
            timeout: Maximum time to wait, in seconds (default: unlimited).

        Raises:
            TimedOut: If the timeout has passed.
        """
        with self._location():
            backend = self._to_change()
            job_results.delete(backend, self.name)
            if wait:
                wait_until_deleted(self._backend, self.name, timeout=timeout)

    def metrics(self, *families: str) -> list[Sample]:
        """Return the current samples of the running pods, of these metric families (default: all).

        Pods that do not answer are left out. An ended job has none: :meth:`report` has what it kept.
        """
        with self._location():
            return read_samples(self._backend, self._backend.job(self.name, events=False), families)

    def report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write the HTML report of the job, and return its path (default: ``NAME.html``). Raises DdpError."""
        write_report: WriteReport = load_entry_point("kubectl_ddp.reports", "html")
        file = Path(f"{self.name}.html" if path is None else path)
        with self._location():
            write_report(self._backend, self.name, file, _LOG.warning)
        return file

    def _to_change(self) -> Backend:
        """Return the backend. Raises UsageError if no place was chosen, and a cluster has a job of this name too."""
        if self.where == "local" and not self._where.local:
            backend_to_change(self._where, self.name)
        return self._backend

    def _location(self) -> AbstractContextManager[None]:
        return thread_location("" if self._where.local else self._where.flags)
