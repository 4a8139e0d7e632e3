"""First code of a worker process: run a program as ``python script`` would, die with the launcher, and write torch's
error file if the program raises.

``python bootstrap.py PARENT_PID (script|module|command) TARGET ARGUMENTS...``

The worker's own interpreter runs this file by path, so it imports only the standard library, and little of it.
:func:`run` is the main entry point. It reports the exit code of the program to the agent through the worker's channel.
"""

from __future__ import annotations

import sys

# The interpreter put this folder first in sys.path, where a script expects its own. No import may come before this.
SAFE_PATH = getattr(sys.flags, "safe_path", False)
if not SAFE_PATH:
    sys.path.pop(0)

import atexit  # noqa: E402
import ctypes  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import types  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from typing import Any

PR_SET_PDEATHSIG = 1
OWN_FILES = {__file__, "<frozen runpy>"}
"""Files whose frames are removed from the user's tracebacks."""
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms
WATCHERS = {"DDP_HEARTBEAT": "heartbeat.py", "DDP_METRICS_DIR": "../../metrics/record/autolog_import.py"}
"""Environment variable → file of this package that watches the script's imports if the variable is set."""
C10D = "torch.distributed.distributed_c10d"

CHANNEL = "DDP_CHANNEL"
"""Name of ``Env.CHANNEL``, which this file, run by path, cannot import."""
STACKS_AFTER_SECONDS = 7
"""Seconds from the end of the program to the stacks. The launcher kills the process after 8 s
(``exit_limit.EXIT_SECONDS``).
"""
FLUSH_FAILED = 120
"""Python's exit code if it cannot flush stdout."""

OF_FULL_DISKS = ("No space left", "Errno 28", "Disk quota exceeded", "failed writing file")
"""Parts of the messages of Python, C++ and torch's writer where a file system is full."""
LEAST_ROOM_BYTES = 64 * 1024
"""Room below which a file system counts as full."""

ended: tuple[int, int] | None = None
"""Process id that ran the program to its end, and its exit code; None before the end, and if Python decides the
code.
"""
channel: tuple[int, int] | None = None
"""Descriptor and inode of the socket to the launcher. The inode shows whether the script closed the descriptor."""


def set_parent_death_signal(parent: int, which: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal, 0 for none, when its parent ends for any reason."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, which)
    except (OSError, AttributeError):
        return  # not Linux: the launcher kills orphans
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it ended before the call to prctl


def exit_process() -> None:
    """Report the program's exit code to the launcher, and exit here if the process has used torch's process groups.

    Python would next destroy its modules while threads of torch's groups still need the GIL. torch then aborts in about
    one of three plain gloo scripts, and a program that did all its work would count as failed. Seen with torch
    2.13 and 2.14.1.

    Python's exit functions have run by now. C's exit functions run without the GIL: one of them may join a thread that
    needs it, as Arrow's thread pool does.
    """
    if ended is None or ended[0] != os.getpid():
        return
    code = ended[1]
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        code = FLUSH_FAILED
    report_end(code)
    if code == ended[1] and C10D in sys.modules:
        block_threads()
        clear_dtensor_cache()
        ctypes.CDLL(None).exit(code)


def report_end(code: int) -> None:
    """Send the launcher the exit code of the program, which starts the time limit of the exit.

    A process that does not exit in time prints the stacks of its threads first.
    """
    try:
        if channel and os.fstat(channel[0]).st_ino == channel[1]:
            import faulthandler  # noqa: PLC0415 - built in, but not needed before

            os.write(channel[0], b'{"is": "ended", "exit_code": %d}\n' % code)
            faulthandler.dump_traceback_later(STACKS_AFTER_SECONDS, file=2)
    except (OSError, RuntimeError):
        pass  # the launcher is gone, or stderr is closed


def block_threads() -> None:
    """Block every thread that Python started, since it would use libraries that are already torn down.

    Python raises an exception in each thread, and the creation of the exception blocks forever. Threads of libraries
    still get the GIL.
    """
    import threading  # noqa: PLC0415 - torch has imported it

    closed = threading.Lock()
    closed.acquire()

    class BlockForever(BaseException):
        def __init__(self) -> None:
            closed.acquire()

    for thread in threading.enumerate():
        # Dummy threads are library threads that have called Python.
        if thread is not threading.current_thread() and not isinstance(thread, threading._DummyThread):  # noqa: SLF001
            ident = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(BlockForever))


def clear_dtensor_cache() -> None:
    """Empty the cache that torch's DTensor keeps for this thread.

    It holds Python objects. C's exit functions would destroy them without the GIL, and the process would abort.
    """
    clear = getattr(getattr(sys.modules.get("torch"), "_C", None), "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()


# Registered first, so that it is called last.
atexit.register(exit_process)


def code_of(end: SystemExit) -> int:
    """Return Python's exit code for this exception: 0 for None, 1 for a text."""
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


def keep_channel() -> None:
    """Duplicate the descriptor of the channel to the launcher, since the program may close the original."""
    global channel  # noqa: PLW0603 - what is called at exit takes no arguments
    number = os.environ.get(CHANNEL, "")
    if number.isdecimal():
        try:
            duplicate = os.dup(int(number))
            channel = duplicate, os.fstat(duplicate).st_ino
        except OSError:
            channel = None


def buffer_lines() -> None:
    """Have each line reach the pipe in one write, since the ranks of a node share it.

    ``python -u`` writes each argument of a ``print`` by itself, and the lines of two ranks would mix.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def run(kind: str, target: str, arguments: list[str]) -> None:
    """Run the program: ``command`` replaces this process, other kinds return when the program ends.

    Args:
        kind: ``script``, ``module`` or ``command``.
        target: Path, module name or program.
        arguments: Arguments of the program.
    """
    if kind == "command":
        os.execvp(target, [target, *arguments])  # noqa: S606 - no shell is wanted
    keep_channel()
    buffer_lines()
    install_watchers([path for variable, path in WATCHERS.items() if os.environ.get(variable)])
    sys.argv = [target, *arguments]
    flags = ["-u"] if kind == "script" else ["-u", "-m"]
    sys.orig_argv = [sys.executable, *flags, *sys.argv]
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": __builtins__, "__annotations__": {}})
    sys.modules["__main__"] = main
    global ended  # noqa: PLW0603 - what is called at exit takes no arguments
    owner = os.getpid()
    try:
        if kind == "module":
            _first_in_path(os.getcwd())  # noqa: PTH109 - pathlib costs 10 ms
            _run_module(target)
        else:
            _run_script(main, target)
        ended = owner, 0
    except SystemExit as error:
        ended = owner, code_of(error)
        raise
    except BaseException as error:
        install_excepthook()
        # After Ctrl-C, Python ends itself by SIGINT, as shells expect.
        ended = None if isinstance(error, KeyboardInterrupt) else (owner, 1)
        if os.getpid() == owner and not isinstance(error, KeyboardInterrupt):
            write_error_file(error)
        raise


def install_watchers(paths: list[str]) -> None:
    """Call ``install`` of the given files of this package, invisibly to the script. A file that fails is left out.

    They report what this worker does once it has a process group, and count its steps once it has torch.
    """
    watch = None
    for path in paths:
        try:
            watch = watch or _load("import_hook.py")
            _load(path).install(watch.call_after_import)
        except Exception:  # noqa: BLE001, S110 - the script is what counts
            pass


def preload_packages() -> frozenset[str]:
    """Return the packages that import in the same way on every rank."""
    return frozenset(_load("heartbeat.py").PRELOAD_PACKAGES)


def _load(path: str) -> Any:
    """Return a module by its path relative to this file, since the package may not be installed for this
    interpreter.
    """
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415 - only here

    path = os.path.normpath(os.path.join(HERE, path))  # noqa: PTH118 - pathlib costs 10 ms
    name = "_ddp_" + os.path.basename(path).partition(".")[0]  # noqa: PTH119
    module = types.ModuleType(name)
    module.__file__ = path
    SourceFileLoader(name, path).exec_module(module)
    return module


def _run_script(main: types.ModuleType, path: str) -> None:
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415 - only here

    path = os.path.abspath(path)  # noqa: PTH100 - as Python does from 3.9 on; sys.argv keeps what was written
    if os.path.isdir(path) or _is_zip(path):  # noqa: PTH112 - pathlib costs 10 ms
        _first_in_path(path)
        _run_module("__main__", alter_argv=False)
        return
    _first_in_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update({"__file__": path, "__loader__": loader, "__cached__": None})
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)  # noqa: S102 - this is what python does


def _first_in_path(folder: str) -> None:
    if not SAFE_PATH:
        sys.path.insert(0, folder)


def _run_module(name: str, *, alter_argv: bool = True) -> None:
    import runpy  # noqa: PLC0415 - costs 5 ms, and scripts do not need it

    # What the interpreter itself calls for -m, for a folder and for a zip file.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined] # noqa: SLF001


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(4) == b"PK\x03\x04"


def user_traceback(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback from the first frame of the user's code."""
    while trace and trace.tb_frame.f_code.co_filename in OWN_FILES:
        trace = trace.tb_next
    return trace


def install_excepthook() -> None:
    """Make the interpreter print the traceback that ``python script`` would, with any hook that the script has set."""
    hook = sys.excepthook

    def hook_of_script(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        shown = user_traceback(trace)
        hook(kind, error.with_traceback(shown), shown)

    sys.excepthook = hook_of_script


def full_directories() -> list[str]:
    """Return the folders without room among those that programs write to, and files without room that are open.

    Frames of an error keep its files open, so a file system that is full because of them still is.
    """
    fixed = ("/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/checkpoints", os.getcwd())  # noqa: PTH109, S108
    opened = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]  # noqa: PTH208
    found: dict[int, str] = {}
    for path in (*fixed, *opened):
        try:
            room, device = os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116
            target = os.readlink(path) if path in opened else path  # noqa: PTH115
        except OSError:
            continue
        if room.f_blocks and not room.f_flag & os.ST_RDONLY and room.f_bavail * room.f_frsize < LEAST_ROOM_BYTES:
            found.setdefault(device, target.removesuffix(" (deleted)"))
    return list(found.values())


def write_error_file(error: BaseException) -> None:
    """Write torch's error file, unless the script's own ``@record`` has written it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or (os.path.exists(path) and os.path.getsize(path)):  # noqa: PTH110, PTH202
        return
    import json  # noqa: PLC0415 - a program that ends well needs none of these
    import time  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    now = time.time_ns()
    extra = {
        "py_callstack": "".join(traceback.format_exception(type(error), error, user_traceback(error.__traceback__))),
        "timestamp": str(now // 1_000_000_000),
        "timestamp_ns": str(now),
    }
    message = f"{type(error).__name__}: {error}"
    if any(words in message for words in OF_FULL_DISKS) and (full := full_directories()):
        message += f" ({', '.join(full)} is full)"
    note = {"message": {"message": message, "extraInfo": extra}}
    try:
        with open(path, "w") as file:  # noqa: PTH123
            json.dump(note, file)
    except OSError as reason:
        print(f"ddp-launch: the error file {path} could not be written: {reason}", file=sys.stderr)


if __name__ == "__main__":
    set_parent_death_signal(int(sys.argv[1]))
    run(sys.argv[2], sys.argv[3], sys.argv[4:])
