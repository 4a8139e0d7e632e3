"""A directory of code that travels with a job: which files, and packed how."""

from kubectl_ddp.code.pack import pack, script_inside

__all__ = ["pack", "script_inside"]
