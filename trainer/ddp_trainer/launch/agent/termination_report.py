"""What stays when the pod is gone: the first error or the summary, in files that a controller reads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddp_trainer.common import constants
from ddp_trainer.common.constants import TERMINATION_MESSAGE_BYTES, Env, Exit, FailureReason, File
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.safe_text import escape_controls, redact_object
from ddp_trainer.launch.failures.failure_reason import is_own, shorten, type_of
from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.process.atomic_files import draft_of

Json = dict[str, object]

_SUCCEEDED: Final = "succeeded"


class Report:
    """The run directory and the termination message of this pod."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        run_dir = environ.get(Env.RUN_DIR, "")
        self._run_dir = Path(run_dir) if run_dir else None
        self._pod = environ.get(Env.POD_NAME, "")
        named = environ.get(Env.TERMINATION_LOG, "")
        self._termination_log = Path(named or constants.Path.TERMINATION_LOG)
        # Without the name, only a file that is already there is one: the kubelet makes it.
        self._may_create = bool(named)
        if self._run_dir:
            (self._run_dir / File.SUMMARY).unlink(missing_ok=True)  # of a container that was here before

    def failed(
        self, failure: Failure, exit_code: int, restarts: Mapping[str, int], account: Mapping[str, object] | None = None
    ) -> None:
        """Keep the first error of the run: in ``error.json`` whole, in the termination message shortened.

        ``account`` is what the job's time went into, see :mod:`ddp_trainer.launch.agent.final_goodput`.
        """
        error = self._error(failure)
        self.keep(failure)
        ending = {"result": "failed", "pod_exit_code": exit_code, "restarts": dict(restarts)}
        self._terminate(fit({**error, **ending, **(account or {})}))

    def keep(self, failure: Failure) -> None:
        """Keep an error in ``error.json``; the run may go on."""
        if self._run_dir:
            _replace(self._run_dir / File.FIRST_ERROR, json.dumps(self._error(failure), indent=1))

    def ended(self, exit_code: int, sentence: str, account: Mapping[str, object] | None = None) -> None:
        """The pod ends for a reason that is no worker's."""
        reason = {"reason": FailureReason.GPU_FAULT} if exit_code == Exit.GPU_FAULT else {}
        ending = {"result": "failed", "pod_exit_code": exit_code, **reason, "message": sentence, "pod": self._pod}
        self._terminate(fit({**ending, **(account or {})}))

    def had_failure(self, *, of_any_kind: bool) -> bool:
        """Return whether a worker has failed in a container of this pod that was here before: of a GPU, or at all."""
        if self._run_dir:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                reason = json.loads((self._run_dir / File.FIRST_ERROR).read_text()).get("reason", "")
                return bool(reason == FailureReason.GPU_FAULT or (of_any_kind and reason and is_own(reason)))
        return False

    def account(self) -> JobAccount | None:
        """What rank 0 found of the job's time when it came to this pod; None where it found nothing."""
        if self._run_dir:
            with contextlib.suppress(OSError, ValueError):
                return JobAccount.from_json((self._run_dir / File.ACCOUNT).read_text())
        return None

    def succeeded(self, restarts: Mapping[str, int], **known: object) -> None:
        """Merge what the launcher knows into the summary that the program wrote, or write one in its place."""
        summary: Json = {"result": _SUCCEEDED, **known, **self._summary(), "restarts": dict(restarts)}
        if self._run_dir:
            _replace(self._run_dir / File.SUMMARY, json.dumps(summary, indent=1))
        self._terminate(fit(summary))

    def _error(self, failure: Failure) -> Json:
        return {
            "rank": failure.rank,
            "local_rank": failure.local_rank,
            **({"place": failure.place} if failure.place else {}),
            "pod": failure.node,
            "host": failure.host,
            "generation": failure.generation,
            "exit_code": failure.exit_code,
            "reason": failure.reason,
            "type": type_of(failure.exit_code, failure.message),
            "message": failure.message,
            "timestamp": failure.timestamp,
            "stack": failure.stack,
        }

    def _summary(self) -> Json:
        if self._run_dir:
            with contextlib.suppress(OSError, ValueError):
                summary = json.loads((self._run_dir / File.SUMMARY).read_text())
                if isinstance(summary, dict):
                    return summary
        return {}

    def _terminate(self, message: str) -> None:
        if self._may_create or self._termination_log.is_file():
            with contextlib.suppress(OSError):
                self._termination_log.write_text(message)


def fit(message: Json, limit: int = TERMINATION_MESSAGE_BYTES) -> str:
    """As JSON of at most ``limit`` bytes: the longest texts are cut in the middle, and lists left out, until it fits.

    Secrets are hidden, and terminal controls escaped: operators repeat a termination message in events.

    >>> fit({"rank": 1, "stack": "abcdefgh" * 9}, 40)
    '{"rank":1,"stack":"abcdefgh…abcdefgh"}'
    """
    message = redact_object(message)
    while len((text := _compact(message)).encode()) > limit:
        name = max(message, key=lambda each: len(_compact(message[each])))
        value = message[name]
        excess = len(text.encode()) - limit
        if isinstance(value, str) and len(value) > 16:
            # JSON may need six bytes for a character, so this may take more than one turn.
            message[name] = shorten(value, max(16, len(value) - max(1, excess // 6), len(value) // 2))
        else:
            del message[name]
    return text


def _compact(value: object) -> str:
    return escape_controls(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _replace(path: Path, text: str) -> None:
    """All of it or none; a full disk must not hide the error that is being reported."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(path) as draft:
            draft.write_text(text)
