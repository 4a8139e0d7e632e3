"""Interface of a feed, and :class:`DirectFeed`, which reads in the training process on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ddp_trainer.train.data.loaders.map_reader import ShardReader
from ddp_trainer.train.data.loaders.request import Fetched, Request
from ddp_trainer.train.data.task import Samples


@runtime_checkable
class Stateful(Protocol):
    """Samples that have a state.

    The state consists of tensors and plain values only, because checkpoints do not load code.
    """

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Feed(Protocol):
    """Source of the samples of the shards that this rank owns, in the order of steps and shards."""

    def fetch(self, request: Request) -> Fetched:
        """Return the samples of a request.

        Raises:
            BadSample: A sample cannot be read, and ``--on-bad-sample skip`` is not given.
        """

    def reassign(self, shards: range) -> None:
        """Change the shards that this rank owns, from the next step on."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state to store in a checkpoint, from which reading resumes after the last committed step.

        Returns:
            None if the feed needs no state.
        """

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state from a checkpoint."""

    def close(self) -> None:
        """Stop reading and release resources."""


class DirectFeed:
    """Feed that reads in the training process, without reading ahead."""

    def __init__(self, samples: Samples, reader: ShardReader) -> None:
        self._samples = samples
        self.fetch = reader.read

    def reassign(self, shards: range) -> None:
        """Do nothing: no samples were read ahead."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the samples, or None if they have none."""
        return {"samples": self._samples.state_dict()} if isinstance(self._samples, Stateful) else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of the samples, if they have one."""
        if state is not None and isinstance(self._samples, Stateful):
            self._samples.load_state_dict(state["samples"])

    def close(self) -> None:
        """Do nothing: the feed holds no resources."""
