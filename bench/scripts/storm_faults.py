"""Faults that a process does to itself when it finds an order in its letter box; standard library only.

The letter box is the directory ``STORM_LETTERS``, and a letter a file whose name is the process's id.
"""

import ctypes
import os
from pathlib import Path

VARIABLE = "STORM_LETTERS"
FOR_EVER_SECONDS = 100_000


def _raise() -> None:
    raise RuntimeError("The storm asked for an exception.")


def _hold_gil() -> None:
    # PyDLL, unlike CDLL, keeps the GIL while the C function runs.
    ctypes.PyDLL(None).sleep(FOR_EVER_SECONDS)


def _exit() -> None:
    os._exit(0)


ORDERS = {"exception": _raise, "gil_held": _hold_gil, "exit_0": _exit}


def run_requested_fault() -> None:
    """Do what a letter says, if there is one."""
    letter = Path(os.environ[VARIABLE], str(os.getpid()))
    try:
        order = letter.read_text()
        letter.unlink()
    except FileNotFoundError:
        return
    ORDERS[order]()
