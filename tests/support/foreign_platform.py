"""The command line on a machine that is not Linux, as far as Linux can show it.

Modules, functions and files that macOS or Windows lack are missing here, and the platform is called darwin. Run as a
program, this module reads command lines of ``kubectl-ddp`` as JSON from stdin, runs each in a separate process, and
prints exit codes and outputs as JSON. With ``modules``, it imports all modules of cluster commands instead.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
import sysconfig
import urllib.request  # noqa: F401 - with the platform's name changed it would look for macOS' own settings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ("fcntl", "inotify", "grp", "pwd", "resource", "kubectl_ddp.backends.local.backend")
FUNCTIONS: Final = {
    os: ("sched_getaffinity", "pidfd_open", "eventfd", "memfd_create", "posix_fadvise", "splice", "setns", "unshare"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
}
SKIPPED: Final = ("kubectl_ddp.backends.local.", "kubectl_ddp.__main__")


def leave_linux() -> None:
    """Take from this process what only Linux has."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in FUNCTIONS.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sysconfig.get_config_vars()  # looks for a file that is named after the platform, once
    sys.addaudithook(_refuse_proc)
    sys.platform = "darwin"


def _refuse_proc(event: str, arguments: Sequence[Any]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def modules() -> list[str]:
    """Import every module that a cluster command may import, and return their names."""
    packages = [importlib.import_module(name) for name in ("kubectl_ddp", "ddp_report")]
    found = [
        module.name
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=_raise)
    ]
    wanted = [name for name in found if not name.startswith(SKIPPED)]
    for name in wanted:
        importlib.import_module(name)
    return wanted


def _raise(_name: str) -> None:
    raise  # noqa: PLE0704 - the error that is being handled


if __name__ == "__main__":
    leave_linux()
    print(json.dumps(modules()))
