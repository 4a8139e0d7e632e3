"""Redaction of secrets and escaping of terminal controls in text of a job.

A job writes its own logs, errors, arguments and environment, so they are not trusted. Code that shows, stores or sends
them calls :func:`redact_text` or :func:`redact_object` first. Code that writes them to a terminal calls
:func:`escape_control_chars`. Launcher and plugin share this package. Standard library only.
"""

from ddp_trainer.common.safe_text.control_chars import escape_control_chars, escape_log_line
from ddp_trainer.common.safe_text.names import HIDDEN, is_safe_variable, is_secret_name
from ddp_trainer.common.safe_text.objects import redact_object
from ddp_trainer.common.safe_text.text_redaction import clean_text, holds_token, redact_text

__all__ = [
    "HIDDEN",
    "clean_text",
    "escape_control_chars",
    "escape_log_line",
    "holds_token",
    "is_safe_variable",
    "is_secret_name",
    "redact_object",
    "redact_text",
]
