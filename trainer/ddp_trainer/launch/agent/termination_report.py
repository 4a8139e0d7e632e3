"""Reports of this pod: a worker's failure for the store, and the first error or the summary for controllers.

:class:`TerminationReport` writes ``error.json``, ``summary.json`` and the termination
message, which remain when the pod is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ddp_trainer.common import constants
from ddp_trainer.common.constants import TERMINATION_MESSAGE_BYTES, Env, Exit, FailureReason, File
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.redacted_objects import redact_object
from ddp_trainer.common.safe_text import escape_control_chars
from ddp_trainer.launch.failures import is_primary_failure, shorten, type_of
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.process.atomic_files import draft_of

Json = dict[str, object]

_SUCCEEDED: Final = "succeeded"
MOST_LEVELS: Final = 100
"""Levels of a summary: functions that call themselves follow them."""


class TerminationReport:
    """Run directory and termination message of this pod."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        run_dir = environ.get(Env.RUN_DIR, "")
        self._run_dir = Path(run_dir) if run_dir else None
        self._pod = environ.get(Env.POD_NAME, "")
        named = environ.get(Env.TERMINATION_LOG, "")
        self._termination_log = Path(named or constants.Path.TERMINATION_LOG)
        # Without a configured path, write only to an existing file, which the kubelet has created.
        self._may_create = bool(named)
        if self._run_dir:
            (self._run_dir / File.SUMMARY).unlink(missing_ok=True)  # of an earlier container of this pod

    def failed(
        self, failure: Failure, exit_code: int, restarts: Mapping[str, int], account: Mapping[str, object] | None = None
    ) -> None:
        """Write the first error of the run: complete in ``error.json``, shortened in the termination message.

        Args:
            failure: First failure of the run.
            exit_code: Exit code of the pod.
            restarts: Cause → number of restarts.
            account: Time breakdown of the job, see :mod:`ddp_trainer.launch.agent.termination_report`.
        """
        error = self._error(failure)
        self.keep(failure)
        ending = {"result": "failed", "pod_exit_code": exit_code, "restarts": dict(restarts)}
        self._terminate(fit({**error, **ending, **(account or {})}))

    def keep(self, failure: Failure) -> None:
        """Write an error to ``error.json``. The run may continue."""
        if self._run_dir:
            _replace(self._run_dir / File.FIRST_ERROR, json.dumps(self._error(failure), indent=1))

    def ended(self, exit_code: int, sentence: str, account: Mapping[str, object] | None = None) -> None:
        """Write the termination message of a pod that ends for a reason other than a failed worker."""
        reason = {"reason": FailureReason.GPU_FAULT} if exit_code == Exit.GPU_FAULT else {}
        ending = {"result": "failed", "pod_exit_code": exit_code, **reason, "message": sentence, "pod": self._pod}
        self._terminate(fit({**ending, **(account or {})}))

    def has_previous_failure(self, *, of_any_kind: bool) -> bool:
        """Return whether a worker failed in an earlier container of this pod: by a GPU fault, or ``of_any_kind``."""
        reason = str(self._read(File.FIRST_ERROR).get("reason", ""))
        return reason == FailureReason.GPU_FAULT or (of_any_kind and bool(reason) and is_primary_failure(reason))

    def account(self) -> JobAccount | None:
        """Return the time breakdown that rank 0 stored when it started in this pod; None if there is none."""
        if self._run_dir:
            with contextlib.suppress(OSError, ValueError):
                return JobAccount.from_json((self._run_dir / File.ACCOUNT).read_text())
        return None

    def summary(self, known: Json) -> str:
        """Return the launcher's values and the summary of the program, for the nodes that had no part in the end."""
        return fit({**known, **self._read(File.SUMMARY)})

    def succeeded(self, restarts: Mapping[str, int], received: str, **known: object) -> None:
        """Merge the launcher's values into the summary of the program, or write a summary if there is none.

        ``received`` is the summary of another node if this one had no part in the end of the run.
        """
        program = _parse_object(received) or self._read(File.SUMMARY)
        summary: Json = {"result": _SUCCEEDED, **known, **program, "restarts": dict(restarts)}
        if self._run_dir:
            _replace(self._run_dir / File.SUMMARY, json.dumps(summary, indent=1))
        self._terminate(fit(summary))

    def _error(self, failure: Failure) -> Json:
        document = {name: value for name, value in asdict(failure).items() if value or name != "place"}
        pod, stack = document.pop("node"), document.pop("stack")
        return {**document, "pod": pod, "type": type_of(failure.exit_code, failure.message), "stack": stack}

    def _read(self, name: File) -> Json:
        """Return the object in a file of the run directory; empty if there is none."""
        if self._run_dir:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return _parse_object((self._run_dir / name).read_text())
        return {}

    def _terminate(self, message: str) -> None:
        if self._may_create or self._termination_log.is_file():
            with contextlib.suppress(OSError):
                self._termination_log.write_text(message)


def fit(message: Json, limit: int = TERMINATION_MESSAGE_BYTES) -> str:
    """Return the message as JSON of at most ``limit`` bytes. The longest texts are cut in the middle and lists removed
    until it fits.

    Secrets are hidden and terminal control characters escaped: operators repeat a termination message in events.

    >>> fit({"rank": 1, "stack": "abcdefgh" * 9}, 40)
    '{"rank":1,"stack":"abcdefgh…abcdefgh"}'
    """
    message = redact_object(message)
    sizes = {name: _bytes(value) for name, value in message.items()}
    while (excess := _bytes(message) - limit) > 0:
        name = max(sizes, key=sizes.__getitem__)
        value = message[name]
        if isinstance(value, str) and len(value) > 16:
            # JSON may need six bytes for a character, so this may take more than one pass.
            message[name] = shorten(value, max(16, len(value) - max(1, excess // 6), len(value) // 2))
            sizes[name] = _bytes(message[name])
        else:
            del message[name], sizes[name]
    return _compact(message)


def _parse_object(text: str) -> Json:
    """Return the JSON object in a text that a program has written; empty if it is none, or nested without end."""
    depths = itertools.accumulate((character in "[{") - (character in "]}") for character in text)
    if max(depths, default=0) > MOST_LEVELS:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _bytes(value: object) -> int:
    return len(_compact(value).encode())


def _compact(value: object) -> str:
    return escape_control_chars(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _replace(path: Path, text: str) -> None:
    """Replace a file completely or not at all. A full disk must not hide the error that is being reported."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(path) as draft:
            draft.write_text(text)
