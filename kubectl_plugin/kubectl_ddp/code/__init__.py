"""Directory of code that is submitted with a job: selection of its files, and their archive."""

from kubectl_ddp.code.archive import pack, script_inside

__all__ = ["pack", "script_inside"]
