"""Interface of a feed: what hands a step its samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ddp_trainer.train.data.loaders.request import FetchResult, Request


@runtime_checkable
class Stateful(Protocol):
    """Samples that have a state.

    The state consists of tensors and plain values only, because checkpoints do not load code.
    """

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Feed(ABC):
    """Source of the samples of the slices that this rank owns, in the order of steps and slices.

    By default a feed has no state, reads nothing ahead and holds no resources.
    """

    @abstractmethod
    def fetch(self, request: Request) -> FetchResult:
        """Return the samples of a request.

        Raises:
            BadSample: A sample cannot be read, and ``--on-bad-sample skip`` is not given.
        """

    def assign_slices(self, batch_slices: range) -> None:  # noqa: B027 - a default
        """Change the slices that this rank owns, from the next step on."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state to store in a checkpoint, from which reading resumes after the last committed step.

        Returns:
            None if the feed needs no state.
        """
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:  # noqa: B027 - a default
        """Restore a state from a checkpoint."""

    def close(self) -> None:  # noqa: B027 - a default
        """Stop reading and release resources."""
