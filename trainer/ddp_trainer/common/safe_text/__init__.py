"""Text of a job, made safe for people: secrets hidden, terminal controls escaped.

Logs, errors, arguments and environment of a job are written by the job. Whatever shows, stores or sends them calls
:func:`redact_text` or :func:`redact_object` first. Whatever writes them to a terminal calls :func:`escape_controls`.
Launcher and plugin share this package; it imports nothing but the standard library.
"""

from ddp_trainer.common.safe_text.controls import escape_controls, escape_log_line
from ddp_trainer.common.safe_text.names import HIDDEN, is_harmless_variable, is_secret_name
from ddp_trainer.common.safe_text.objects import redact_object
from ddp_trainer.common.safe_text.texts import clean_text, redact_text

__all__ = [
    "HIDDEN",
    "clean_text",
    "escape_controls",
    "escape_log_line",
    "is_harmless_variable",
    "is_secret_name",
    "redact_object",
    "redact_text",
]
