"""Workers of one agent by their part in the group: :class:`LocalWorkers`, as sets of local ranks.

A worker is *active* from its start until it exits. A worker that is *able* to outlive its group is active only until
it has left the group. Then it is *idle* and joins the next generation, or it is *parting*: it was told to end and is
still saving. The agent stops workers that are not able, or do not leave in time.
"""

from __future__ import annotations


class LocalWorkers:
    """Local ranks of one agent's workers, by state."""

    def __init__(self, count: int) -> None:
        self.count = count
        """Number of workers of the node."""
        self.alive: set[int] = set()
        self.able: set[int] = set()
        self.idle: set[int] = set()
        self.parting: set[int] = set()
        self.publishing: set[int] = set()
        """Workers whose save other nodes need."""
        self.outlives = False
        """True if the workers can outlive their group, including those that have exited since."""

    def start(self) -> None:
        """Record that all workers of the node are started, or that the idle ones continue."""
        self.alive = set(range(self.count))

    def set_reusable(self, local_rank: int, *, able: bool) -> bool:
        """Record that a worker can outlive its group from now on, or no longer. Return True if it could until now."""
        self.outlives = able
        if able and local_rank in self.alive:
            self.able.add(local_rank)
        elif local_rank in self.able:
            self.able.discard(local_rank)
            return True
        return False

    def leave(self, local_rank: int, *, stays: bool, publishes: bool) -> None:
        """Record that a worker has left its group. The arguments are those of
        :meth:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine.left`.
        """
        (self.idle if stays else self.parting).add(local_rank)
        if not stays:
            self.able.discard(local_rank)
        if publishes:
            self.publishing.add(local_rank)

    def remove(self, local_rank: int) -> None:
        """Record that a worker has exited."""
        for group in (self.alive, self.able, self.idle, self.parting, self.publishing):
            group.discard(local_rank)

    @property
    def active(self) -> set[int]:
        """Workers that have not left their group."""
        return self.alive - self.idle - self.parting

    @property
    def survivors(self) -> frozenset[int]:
        """Active workers that can outlive their group."""
        return frozenset(self.able & self.active)

    @property
    def are_all_reusable(self) -> bool:
        """True if every worker of the node can outlive its group."""
        return len(self.able) == self.count

    @property
    def are_all_idle(self) -> bool:
        """True if every worker of the node waits for the next group."""
        return len(self.idle) == self.count
