"""What a feed does, and the plainest one: read in the training process, when asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ddp_trainer.train.data.loaders.map_reader import ShardReader
from ddp_trainer.train.data.loaders.request import Fetched, Request
from ddp_trainer.train.data.task import Samples


@runtime_checkable
class Stateful(Protocol):
    """Samples that know where they stand; tensors and plain values only, since checkpoints load no code."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Feed(Protocol):
    """Gives the samples of the shards that this rank owns, step by step and shard by shard."""

    def fetch(self, request: Request) -> Fetched:
        """Read the samples.

        Raises:
            BadSample: one cannot be read, and the run was not told to skip it.
        """

    def reassign(self, shards: range) -> None:
        """From the next step on this rank owns these shards."""

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint must hold to go on after the last committed step; None where that is nothing."""

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a stored state."""

    def close(self) -> None:
        """Read no more."""


class DirectFeed:
    """Reads in the training process."""

    def __init__(self, samples: Samples, reader: ShardReader) -> None:
        self._samples = samples
        self.fetch = reader.read

    def reassign(self, shards: range) -> None:
        """Nothing was read ahead."""

    def state_dict(self) -> dict[str, Any] | None:
        """The samples' own, where they have one."""
        return {"samples": self._samples.state_dict()} if isinstance(self._samples, Stateful) else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Hand the samples their own back."""
        if state is not None and isinstance(self._samples, Stateful):
            self._samples.load_state_dict(state["samples"])

    def close(self) -> None:
        """Nothing is open."""
