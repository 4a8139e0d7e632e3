"""Fencing of a checkpoint directory: only the newest worker group of a run publishes checkpoints there.

Two groups can train the same run at the same time, for example after a node was cut off from the network and has come
back. :class:`WriteLease` keeps the older one from writing, by the file ``CLAIM`` in the directory, with two rules:

1. *A writer claims the directory when it starts*, by replacing the file with its own random token, its fence and its
   run id. Within a run it may not replace the claim of a group that comes after its own. Claims of other runs are
   replaced, whatever their fence.
2. *A writer publishes only while its own token is in the file*; it reads the file before each rename. A writer that
   finds another token ends and never takes the claim back. So of two writers at most one publishes, even if no order of
   their fences is known.

The order of rule 1 is that of :func:`ddp_trainer.process.fence.precedence`. A fence is one more than the fence of the
group before, or the median of the nodes' clocks in milliseconds if that is greater. It is *plausible* if it is at most
a day ahead of this machine's clock:

=========  =============  =======================================================================================
own fence  claim's fence  the writer replaces the claim
=========  =============  =======================================================================================
plausible  plausible      if its own fence is not smaller
plausible  ahead          always, since clocks a year ahead make a fence that no later group reaches for a year
ahead      plausible      never; it is refused until the clocks are right
ahead      ahead          if its own fence is not smaller
=========  =============  =======================================================================================

No case lets a stale writer back in:

- The fences of one store increase. So do those of successive stores, if an agent reports the last fence to the new one.
  The older of two groups is therefore never further ahead, and the greater number decides.
- Once a group with a plausible fence has written, the group that it replaced stays out, also when its store gives it
  greater fences. A new group whose clocks are ahead is refused as well: it looks the same as the group that stays out.
- On a machine whose clock is ahead, fences are plausible that are not so elsewhere. Its group can replace the claim of
  a group with the right clock. That group then ends by rule 2, so the two never publish side by side.

A clock error of less than a day delays the next group by that error at most. A claim can change undetected between the
check and the rename; shared file systems have no operation that prevents it. A claim that cannot be parsed is an error,
because without an order any writer could publish.

In an object store, :class:`ClaimJournal` does the same. The journal is a sequence of numbered objects in the folder
``claims``. The object with the greatest number is in force. It names the writer and the published checkpoints, so one
write of one object claims, publishes or removes. A writer adds the next number with a conditional write
(``If-None-Match: *``), which fails if another writer has added it. So a stale writer cannot publish, however late its
request arrives: the number after the one that it has read is taken. The last two objects are kept. A writer that falls
further behind finds a greater number after its write, and ends.

The order of writers is the same. In a store without conditional writes,
a writer reads its object again after writing it. Two writers whose requests cross within that time may both believe
that they published; the object in force is that of the later one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from ddp_trainer.common import strict_json
from ddp_trainer.common.strict_json import Matching
from ddp_trainer.process.atomic_files import atomic_write, remove_stale_temp_files
from ddp_trainer.process.fence import is_valid_fence, precedence
from ddp_trainer.train.storage.object_storage import ObjectStorage
from ddp_trainer.train.utils.errors import (
    ConditionUnsupported,
    InvalidLease,
    ObjectExists,
    ObjectMissing,
    StaleGeneration,
)

FILE: Final = "CLAIM"
_MAX_BYTES: Final = 4096
_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Claim:
    """A writer and its place in the order of writers, as a claim file has it."""

    token: str
    generation: int
    fence: int
    run_id: str
    pid: int


class _Writer:
    """A writer with a claim that it takes again for each of its groups."""

    def __init__(self, claim: Claim, place: str, name: str, clock: Callable[[], float]) -> None:
        """Create the writer; :meth:`take` claims.

        Args:
            claim: Token, generation and fence of this writer.
            place: Directory or URL of the checkpoints.
            name: File or folder of the claim.
            clock: Clock, in seconds since the Unix epoch.
        """
        self._own = claim
        self._place, self._name = place, name
        self._clock = clock
        self._taken = False

    @property
    def token(self) -> str:
        """Random token of this writer."""
        return self._own.token

    def take(self) -> object:
        """Become the writer, in place of every group that does not come after this one."""
        raise NotImplementedError

    def renew(self, *, generation: int, fence: int) -> None:
        """Claim again for a later group in which this process still writes.

        What it is writing stays valid. Raises as :meth:`take` does.
        """
        self._own = replace(self._own, generation=generation, fence=fence)
        self._taken = False
        self.take()

    def _is_before(self, standing: Claim) -> bool:
        """Return True if the standing claim is that of a later group of the same run."""
        if not self._own.run_id or standing.run_id != self._own.run_id:
            return False
        now = self._clock()
        return precedence(standing.fence, now) > precedence(self._own.fence, now)

    def _stale(self, standing: Claim | None) -> StaleGeneration:
        """Return the error that ends this writer, and how to fix it.

        Args:
            standing: The claim in force; None without one.
        """
        own, now = self._own, self._clock()
        sentence = f"Generation {own.generation} may no longer write to {self._place}: "
        delete = f"delete {self._name} if no other worker group of this run is running"
        if standing is None:
            return StaleGeneration(f"{sentence}{self._name} was removed.", hint="Start the run again.")
        sentence += f"generation {standing.generation} has claimed it"
        if is_valid_fence(standing.fence, now) and not is_valid_fence(own.fence, now):
            days = (own.fence // 1000 - int(now)) // _DAY_SECONDS
            return StaleGeneration(
                f"{sentence}, and the fence of this group is {days} days ahead of this machine's clock.",
                hint=f"Correct the clock of the rendezvous store's machine and start again, or {delete}.",
            )
        return StaleGeneration(
            f"{sentence}.", hint=f"The newer worker group continues. If there is none, {delete}, and start again."
        )


class WriteLease(_Writer):
    """This writer's claim on one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        generation: int,
        fence: int,
        run_id: str,
        token: str,
        pid: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = directory / FILE
        own = Claim(token, generation, fence, run_id, pid or os.getpid())
        super().__init__(own, str(directory), str(self._file), clock)

    def take(self) -> None:
        """Become the directory's writer, in place of every group that does not come after this one.

        Raises:
            StaleGeneration: A group of this run that comes after this one has claimed the directory.
            InvalidLease: The claim in the directory cannot be parsed.
            OSError: The claim could not be read or written.
        """
        standing = self._read()
        if standing is not None and self._is_before(standing):
            raise self._stale(standing)
        atomic_write(self._file, json.dumps(asdict(self._own)).encode())
        remove_stale_temp_files(self._file)
        self._taken = True

    def check(self) -> None:
        """Return if this writer's claim is in the directory; take it first if that has failed so far.

        Raises:
            StaleGeneration: Another writer has claimed the directory since, or the claim was removed.
            InvalidLease: The claim in the directory cannot be parsed.
            OSError: The claim could not be read or written.
        """
        if not self._taken:
            self.take()
            return
        standing = self._read()
        if standing is None or standing.token != self.token:
            raise self._stale(standing)

    def _read(self) -> Claim | None:
        """Return the claim in the directory, or None without one."""
        try:
            with self._file.open("rb") as stream:
                content: Claim = strict_json.parse(Claim, strict_json.loads(stream.read(_MAX_BYTES)))
        except FileNotFoundError:
            return None
        except strict_json.DecodeError as error:
            raise InvalidLease(
                f"The claim on the checkpoint directory, {self._file}, is damaged: {error}.",
                hint="If no worker group writes to this directory, delete the file and start again.",
            ) from None
        return content


FOLDER: Final = "claims"
_RETAINED: Final = 2
"""Last objects of the journal that are kept. A reader that has listed the last but one can still read it."""
NAME: Final = "step-[0-9]{8,}[A-Za-z0-9_.-]*"
"""Pattern of the folder of a checkpoint."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Content of one object of the journal."""

    claim: Claim
    checkpoints: tuple[Annotated[str, Matching(NAME)], ...]
    """Names of the published checkpoints."""


class ClaimJournal(_Writer):
    """This writer's claim on the checkpoints below one URL."""

    def __init__(
        self,
        storage: ObjectStorage,
        claim: Claim,
        *,
        complete_names: Callable[[], Sequence[str]],
        alarm: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the view; :meth:`take` claims.

        Args:
            storage: The objects.
            claim: Token, generation and fence of this writer.
            complete_names: Returns the names of complete checkpoints in a store without a journal.
            alarm: Receives a sentence if the store has no conditional writes.
            clock: Clock, in seconds since the Unix epoch.
        """
        super().__init__(claim, storage.url, f"the folder {storage.url}/{FOLDER}", clock)
        self._storage = storage
        self._complete_names = complete_names
        self._alarm = alarm
        self.is_conditional: bool | None = None
        """True if the store has conditional writes; None before the first claim."""

    def take(self) -> tuple[str, ...]:
        """Become the writer, in place of every group that does not come after this one.

        Returns:
            The names of the published checkpoints.

        Raises:
            StaleGeneration: A group of this run that comes after this one has claimed the store.
            InvalidLease: The claim in the store cannot be parsed.
            StorageError: The store failed.
        """
        while True:
            number, standing = read_record(self._storage)
            if standing is not None and self._is_before(standing.claim):
                raise self._stale(standing.claim)
            published = tuple(self._complete_names()) if standing is None else standing.checkpoints
            if self._add(number + 1, JournalEntry(self._own, published)):
                self._taken = True
                return published

    def publish(self, update: Callable[[tuple[str, ...]], tuple[str, ...]]) -> tuple[str, ...]:
        """Replace the list of published checkpoints; claim the store first if that has failed so far.

        Args:
            update: Returns the new list for the published one.

        Raises:
            StaleGeneration: Another writer has claimed the store since, or the claim was removed.
            InvalidLease: The claim in the store cannot be parsed.
            StorageError: The store failed. The list may have been replaced if its answer was lost.
        """
        if not self._taken:
            self.take()
        while True:
            number, standing = read_record(self._storage)
            if standing is None or standing.claim.token != self.token:
                raise self._stale(None if standing is None else standing.claim)
            names = update(standing.checkpoints)
            if self._add(number + 1, JournalEntry(self._own, names)):
                return names

    def _add(self, number: int, record: JournalEntry) -> bool:
        """Add the next object of the journal; false if another one has its number, or a greater one."""
        key, content = _key(number), json.dumps(asdict(record)).encode()
        try:
            self._storage.write(key, content, if_absent=self.is_conditional is not False)
        except ObjectExists:  # possibly by an attempt of this call whose answer was lost
            if self._read_back(key) != content:
                return False
        except ConditionUnsupported:
            self._note_unconditional()
            self._storage.write(key, content)
        if self.is_conditional is None:
            self._probe(key, content)
        numbers = _numbers(self._storage)
        if max(numbers, default=0) != number or (not self.is_conditional and self._read_back(key) != content):
            return False
        for old in numbers[:-_RETAINED]:
            self._storage.delete(_key(old))
        return True

    def _probe(self, key: str, content: bytes) -> None:
        """Find out whether the store honors the condition: some ignore it, and replace the object with itself here."""
        try:
            self._storage.write(key, content, if_absent=True)
        except ObjectExists:
            self.is_conditional = True
        else:
            self._note_unconditional()

    def _note_unconditional(self) -> None:
        self.is_conditional = False
        self._alarm(
            f"{self._storage.url} has no conditional writes (If-None-Match): if two worker groups of this run save "
            "within the same second, one of the two checkpoints may be lost."
        )

    def _read_back(self, key: str) -> bytes:
        try:
            return self._storage.read(key)
        except ObjectMissing:
            return b""


def read_record(storage: ObjectStorage) -> tuple[int, JournalEntry | None]:
    """Return the number and the content of the object in force; 0 and None without a journal.

    Raises:
        InvalidLease: It cannot be parsed.
        StorageError: The store failed.
    """
    while numbers := _numbers(storage):
        key = _key(numbers[-1])
        try:
            content = storage.read(key)
        except ObjectMissing:  # replaced since
            continue
        try:
            record: JournalEntry = strict_json.parse(JournalEntry, strict_json.loads(content))
        except strict_json.DecodeError as error:
            raise InvalidLease(
                f"The claim on the checkpoints, {storage.url}/{key}, is damaged: {error}.",
                hint=f"If no worker group writes to {storage.url}, delete the object and start again.",
            ) from None
        return numbers[-1], record
    return 0, None


def _numbers(storage: ObjectStorage) -> list[int]:
    names = (entry.key.removeprefix(f"{FOLDER}/").removesuffix(".json") for entry in storage.list(FOLDER))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _key(number: int) -> str:
    return f"{FOLDER}/{number:012d}.json"
