"""Reading of a stream: every rank reads the whole stream and keeps the samples of its slices.

The number of a sample is its position in the stream. Batch plan, vote and sample tracker therefore work as for any data
set, and a resize moves no data. The cost is that each rank also reads, and drops, the samples of other ranks. A rank
does not read beyond its last slice of the current step. A stored state is therefore never ahead of the last committed
step, and a rank that resumes from it only reads forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from torch.utils.data import default_collate

from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request, Stateful
from ddp_trainer.train.utils.errors import BadData, BadSample

_END: Final = object()


class StreamFeed(Feed):
    """Feed that reads an iterable in order. Uses its ``set_epoch`` and ``state_dict`` if it has them."""

    def __init__(self, samples: Iterable[Any], length: int, random: KeyedRng, *, skips: bool) -> None:
        """``length`` is the number of samples in one epoch; ``skips`` leaves out samples that cannot be read."""
        self._samples = samples
        self._length = length
        self._random = random
        self._skips = skips
        self._epoch = 0
        self._position = 0
        self._iterator: Iterator[Any] | None = None

    def fetch(self, request: Request) -> FetchResult:
        """Read forward to the slice, and return its samples.

        Raises:
            BadData: The stream has fewer or more samples than its length.
            BadSample: A sample cannot be read, and ``skips`` is false.
        """
        self._go_to(request.epoch, int(request.ids[0]))
        answers = [self._next() for _ in range(len(request.ids))]
        read = [answer[0] for answer in answers if isinstance(answer, tuple)]
        skipped = tuple(answer for answer in answers if isinstance(answer, str))
        return FetchResult(default_collate(read) if read else None, skipped)

    def _go_to(self, epoch: int, position: int) -> None:
        if self._iterator is None and self._epoch != epoch and not isinstance(self._samples, Stateful):
            # This process starts in this epoch, and samples without a state do not need the epochs before.
            self._epoch, self._position = epoch, 0
        while self._epoch < epoch:
            self._read_on(self._length)
            self._end_epoch()
        self._read_on(position)

    def _end_epoch(self) -> None:
        """Read past the last sample: many streams start over only after that."""
        if self._iterator is None:
            self._iterator = self._open()
        if next(self._iterator, _END) is not _END:
            raise BadData(
                f"The stream yields more samples in epoch {self._epoch + 1} than its len(), {self._length}.",
                hint="Correct its len().",
            )
        self._epoch, self._position, self._iterator = self._epoch + 1, 0, None

    def _read_on(self, position: int) -> None:
        while self._position < position:
            self._next()

    def _next(self) -> tuple[Any] | str:
        """Return the next sample in a tuple, or the reason why it was skipped."""
        if self._iterator is None:
            self._iterator = self._open()
        self._random.enter(Stream.SAMPLE, self._epoch, self._position)
        try:
            return (next(self._iterator),)
        except StopIteration:
            raise BadData(
                f"The stream of samples ended after {self._position} samples in epoch {self._epoch + 1}, "
                f"and the run counts on {self._length}.",
                hint="Correct its len(), or give fewer --max-steps.",
            ) from None
        except BadSample as err:
            if not self._skips:
                raise
            return err.message
        finally:
            self._position += 1

    def _open(self) -> Iterator[Any]:
        set_epoch = getattr(self._samples, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self._epoch)
        return iter(self._samples)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the samples and its position in the stream; None if the samples have no state."""
        if not isinstance(self._samples, Stateful):
            return None
        return {"epoch": self._epoch, "position": self._position, "samples": self._samples.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore a stored position. Without one, the stream is read again from the beginning of the epoch."""
        if state is not None and isinstance(self._samples, Stateful):
            self._samples.load_state_dict(state["samples"])
            self._epoch, self._position = state["epoch"], state["position"]

    def close(self) -> None:
        """Drop the iterator of the stream."""
        self._iterator = None
