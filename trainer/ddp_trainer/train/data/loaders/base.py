"""Interface between a step and its feed: the request for the samples of a slice, the answer, and :class:`Feed`.
:class:`Skips` limits the number of messages about skipped samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from ddp_trainer.train.data.task import Batch


class Request(NamedTuple):
    """Request for the samples of one batch slice of one global step."""

    step: int
    epoch: int
    slice_index: int
    ids: Tensor
    """Sample ids in the order of the batch: int64, shape ``(n,)``, not empty."""


class BatchSlice(NamedTuple):
    """Fetched samples of one global step that a rank computes together: one batch slice, or all of its own merged."""

    slice_index: int
    """Number of the batch slice; of merged ones, the first."""
    batch: Batch
    """Collated samples on the device."""
    samples: int
    """Number of samples in the slice."""
    total_samples: int
    """Number of samples of the whole global step."""
    is_last: bool
    """True for the last slice of this rank in the step."""


class FetchResult(NamedTuple):
    """Samples of a request. A named tuple, so that torch's loader finds the tensors to pin in it."""

    batch: Batch | None
    """Collated samples on the CPU; None if none of them could be read."""
    skipped: tuple[str, ...] = ()
    """Reason for each sample that was skipped under ``--on-bad-sample skip``."""


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


MAX_REASONS: Final = 20


class Skips:
    """Reports each reason for a skipped sample once, and at most :data:`MAX_REASONS` reasons.

    One more message then states that further samples are only counted.
    """

    def __init__(self, alarm: Callable[[str], None]) -> None:
        self._alarm = alarm
        self._reported: set[str] = set()

    def __call__(self, sentence: str) -> None:
        """Report a skipped sample with the reason ``sentence``."""
        if sentence in self._reported or len(self._reported) > MAX_REASONS:
            return
        self._reported.add(sentence)
        if len(self._reported) > MAX_REASONS:
            self._alarm("More samples cannot be read; the summary counts them as samples_skipped.")
        else:
            self._alarm(f"{sentence} It counts as seen, with weight 0.")
