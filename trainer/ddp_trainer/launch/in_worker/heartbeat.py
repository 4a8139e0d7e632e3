"""Worker's side of the hang watchdog: a thread that writes a heartbeat to the worker's heartbeat page and answers
requests for stacks. :func:`install` is the main entry point.

Loaded by path into the processes of user scripts, by the interpreter that runs them: standard library only, and torch
only if the script has imported it. Nothing starts before the script has a process group of more than one rank. So a
script without one pays nothing and can fork as usual. A failure here never stops training.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any

HEARTBEAT_VARIABLE = "DDP_HEARTBEAT"
C10D = "torch.distributed.distributed_c10d"
IMPORTS_STABLE_SECONDS = 2.0
"""Seconds without an import, in a group, to the list of imports. By then a script has built its model, wrapped it and
taken a step.
"""
PRELOAD_PACKAGES = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "PIL"}
    | {"sympy", "mpmath", "networkx", "jinja2", "ddp_preflight", "ddp_trainer", "ddp_workloads"}
)
"""Packages that import in the same way on every rank. Others, such as Lightning, read the rank while they import."""
PAGE = os.path.join("..", "..", "process", "heartbeat_page.py")  # noqa: PTH118
stacks: Any = None
"""File to which the signal handler writes until there is a process group."""
MOST_COLLECTIVES = 64
"""Maximum number of collectives in an answer, the last ones."""
STACK_SIGNAL_BELOW_LAST = 7
"""Distance of the stack signal below ``SIGRTMAX``. glibc uses the first two real-time signals; this one is unused."""


def install(when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Watch for a process group, if the launcher has set a heartbeat page."""
    if path := os.environ.get(HEARTBEAT_VARIABLE):
        register_stack_signal(path)
        when_imported(C10D, begin)


def register_stack_signal(path: str) -> None:
    """Let the launcher see where this worker is before it has a process group, by a signal that costs it nothing."""
    global stacks  # noqa: PLW0603 - a signal handler needs a file that stays open
    try:
        page = load(PAGE)
        stacks = write_stacks_on_signal(page, page.open_page(path), path + page.STACKS_BEFORE)
    except Exception:  # noqa: BLE001, S110 - the script is what counts
        pass


def begin(c10d: Any) -> None:
    """Watch torch's process groups, and accept requests for traces. Called after the import of torch.distributed."""
    track_default_group(c10d)
    try:  # noqa: SIM105 - contextlib would cost a worker a millisecond
        load("ondemand_profiler.py").listen(os.environ[HEARTBEAT_VARIABLE])
    except Exception:  # noqa: BLE001, S110 - the script is what counts
        pass


def track_default_group(c10d: Any) -> Heartbeat | None:
    """Return a heartbeat that follows torch's default group; None if this torch does not allow it.

    ``_update_default_pg`` is private. If torch has none, no heartbeat begins and the launcher does not judge the script
    by it.
    """
    inner = getattr(c10d, "_update_default_pg", None)
    if inner is None:
        return None
    beat = Heartbeat(c10d, os.environ[HEARTBEAT_VARIABLE])
    beat.mark_import()

    def update(group: Any) -> None:
        beat.pause()
        inner(group)
        if group is not None:
            beat.go_on()

    c10d._update_default_pg = update  # noqa: SLF001 - the guard is above
    original_rendezvous = getattr(c10d, "rendezvous", None)
    if original_rendezvous is not None:

        def rendezvous(url: Any, rank: int = -1, world_size: int = -1, **more: Any) -> Any:
            beat.mark_init_begin(world_size)
            return original_rendezvous(url, rank, world_size, **more)

        c10d.rendezvous = rendezvous
    return beat


class Heartbeat:
    """Heartbeat thread of one worker."""

    def __init__(self, c10d: Any, path: str) -> None:
        self._c10d = c10d
        self._path = path
        self._owner = os.getpid()
        self._cells: Any = None
        self._thread: Any = None
        self._folder = ""
        self._stacks: Any = None
        self._write_imports_at = 0.0
        self._modules = 0
        self._page = load(PAGE)

    def mark_import(self) -> None:
        """Mark that this worker can make process groups."""
        try:  # noqa: SIM105 - contextlib would cost a worker a millisecond
            self._page.open_page(self._path)[self._page.HAS_DISTRIBUTED] = 1.0
        except Exception:  # noqa: BLE001, S110 - training does not fail because it is watched
            pass

    def mark_init_begin(self, world_size: int) -> None:
        """Mark that this worker waits for its peers to make the default group of this size; -1 for that of the job."""
        import time  # noqa: PLC0415

        try:
            if os.getpid() == self._owner:
                cells = self._page.open_page(self._path) if self._cells is None else self._cells
                cells[self._page.WANTED] = float(world_size if world_size > 0 else os.environ.get("WORLD_SIZE", "0"))
                cells[self._page.INIT_SINCE] = time.monotonic()
        except Exception:  # noqa: BLE001, S110 - training does not fail because it is watched
            pass

    def _mark_init_end(self) -> None:
        cells = self._page.open_page(self._path) if self._cells is None else self._cells
        cells[self._page.INIT_SINCE] = 0.0
        cells[self._page.LARGEST_GROUP] = max(cells[self._page.LARGEST_GROUP], float(self._group_size()))

    def pause(self) -> None:
        """Mark that there is no default group, and so no wait for peers."""
        if self._cells is not None:
            self._cells[self._page.HAS_GROUP] = 0.0

    def go_on(self) -> None:
        """Start the heartbeat for a new default group of more than one rank."""
        try:
            if os.getpid() == self._owner:
                self._mark_init_end()
                if self._group_size() > 1:
                    self._start()
        except Exception:  # noqa: BLE001, S110 - training does not fail because it is watched
            pass

    def _group_size(self) -> int:
        group = self._c10d._world.default_pg  # noqa: SLF001 - torch has no public way to ask without failing
        return int(group.size()) if group is not None else 0

    def _start(self) -> None:
        if self._cells is None:
            import atexit  # noqa: PLC0415 - a script without a group needs none of these
            import threading  # noqa: PLC0415

            self._cells = self._page.open_page(self._path)
            self._find_folder()
            self._end = threading.Event()
            self._thread = threading.Thread(target=self._run, name="ddp-beat", daemon=True)
            # A thread that Python freezes inside torch at shutdown would abort the process.
            atexit.register(self.stop)
            self._write_heartbeat()
            self._write_imports_at = self._cells[self._page.BEAT] + IMPORTS_STABLE_SECONDS
            self._thread.start()
        else:
            self._find_folder()
            self._write_heartbeat()
        self._cells[self._page.HAS_GROUP] = 1.0

    def stop(self) -> None:
        """End the heartbeat and its thread."""
        self.pause()
        self._end.set()
        if self._thread is not None and os.getpid() == self._owner:
            self._thread.join(1.0)

    def _find_folder(self) -> None:
        """Use the folder of the current group's files for answers, since a process may outlive its group."""
        folder = error_file_dir()
        if folder != self._folder:
            self._folder = folder
            before, self._stacks = (
                self._stacks,
                write_stacks_on_signal(
                    self._page,
                    self._cells,
                    os.path.join(folder, "stacks.txt"),  # noqa: PTH118
                ),
            )
            if before is not None:
                before.close()

    def _run(self) -> None:
        page, cells = self._page, self._cells
        self._serve()
        while not self._end.wait(page.BEAT_SECONDS):
            if cells[page.HAS_GROUP]:
                self._write_heartbeat()
                if self._write_imports_at:
                    self._write_stable_imports(cells[page.BEAT])
            request = cells[page.REQUESTED]
            if request != cells[page.ANSWERED]:
                self._dump_stacks()
                cells[page.ANSWERED] = request

    def _write_stable_imports(self, now: float) -> None:
        """Write the list of imports once no module was imported for some time."""
        count = len(sys.modules)
        if count != self._modules:
            self._modules, self._write_imports_at = count, now + IMPORTS_STABLE_SECONDS
        elif now > self._write_imports_at:
            self._write_imports_at = 0.0
            write_imports(self._path + self._page.IMPORTS)

    def _serve(self) -> None:
        """Start torch's flight recorder server, which answers even if this thread cannot run."""
        try:
            load("flight_recorder_server.py").start(os.path.splitext(self._path)[0] + ".sock")  # noqa: PTH122
        except Exception:  # noqa: BLE001 - the launcher then knows less
            return

    def _write_heartbeat(self) -> None:
        """Write the numbers of collectives and a heartbeat."""
        import time  # noqa: PLC0415

        page, cells = self._page, self._cells
        try:
            world = self._c10d._world  # noqa: SLF001
            numbers = {group: group._get_sequence_number_for_group() for group in list(world.pg_map)}  # noqa: SLF001
            cells[page.SEQUENCE] = float(numbers.get(world.default_pg, -1))
            cells[page.TOTAL] = float(sum(numbers.values()))
        except Exception:  # noqa: BLE001 - a backend that does not count, or another torch API
            cells[page.SEQUENCE] = -1.0
        cells[page.BEAT] = time.monotonic()

    def _dump_stacks(self) -> None:
        """Write the stack of every thread and the last collectives."""
        import json  # noqa: PLC0415 - costs 4 ms, and hardly ever is there a question

        try:
            answer = {"place": "", "stack": "", "collectives": collectives()}
            stacks = stacks_of_threads()
            main, frames = stacks[0]
            answer["place"], answer["stack"] = place_of(frames), main
            text = json.dumps(answer)
            path = os.path.join(self._folder, "answer.json")  # noqa: PTH118
            with open(f"{path}.new", "w") as file:  # noqa: PTH123
                file.write(text)
            os.replace(f"{path}.new", path)  # noqa: PTH105
            with open(os.path.join(self._folder, "stacks.txt"), "a") as file:  # noqa: PTH118, PTH123
                file.write("\n".join(text for text, _ in stacks) + "\n")
        except Exception:  # noqa: BLE001, S110 - the launcher then knows less
            pass


def error_file_dir() -> str:
    """Return the folder of this worker's files in the current group."""
    return os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", "")) or os.devnull  # noqa: PTH120


def write_stacks_on_signal(page: Any, cells: Any, path: str) -> Any:
    """Have the stack signal write all stacks, unless the script uses this signal. The handler is in C and needs no GIL.

    Returns:
        The file of the stacks, which must stay open, since a signal handler cannot open one; None without a handler.
    """
    import faulthandler  # noqa: PLC0415
    import signal  # noqa: PLC0415

    number = signal.SIGRTMAX - STACK_SIGNAL_BELOW_LAST
    try:
        if signal.getsignal(number) is not signal.SIG_DFL:
            return None
        file = open(path, "a", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
        faulthandler.register(number, file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError):
        return None
    cells[page.SIGNAL] = float(number)
    return file


def write_imports(path: str) -> None:
    """Write the names of imported modules for the fork server of the next workers."""
    try:
        known = [
            (name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in PRELOAD_PACKAGES
        ]
        with open(f"{path}.new", "w") as file:  # noqa: PTH123
            file.write("\n".join(name for name, module in known if is_loaded(module)))
        os.replace(f"{path}.new", path)  # noqa: PTH105
    except Exception:  # noqa: BLE001, S110 - a restart then takes longer
        pass


def is_loaded(module: Any) -> bool:
    """Return whether this is a completely loaded module. Lazy modules are not touched and count as not loaded."""
    kind: Any = type(module)
    is_lazy = kind.__getattribute__ is not type(sys).__getattribute__
    return not is_lazy and getattr(module, "__spec__", None) is not None


def load(path: str) -> Any:
    """Return a module by its path relative to this file, since the package may not be installed for this
    interpreter.
    """
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    name = f"_ddp_{os.path.basename(path).removesuffix('.py')}"  # noqa: PTH119
    loader = importlib.machinery.SourceFileLoader(name, os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118
    module = type(sys)(name)
    loader.exec_module(module)
    return module


def stacks_of_threads() -> list[tuple[str, Any]]:
    """Return stack text and frames of every thread but this one, the main thread first."""
    import threading  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001 - documented
    stacks = []
    for ident, frame in frames:
        if ident != own:
            summary = traceback.extract_stack(frame)
            summary = traceback.StackSummary.from_list(
                [line for line in summary if not is_internal_frame(line.filename)]
            )
            title = f"Thread {names.get(ident, ident)} (most recent call last):\n"
            stacks.append((title + "".join(summary.format()), summary))
    return stacks


def place_of(frames: Any) -> str:
    """Return the innermost line outside of libraries, as ``train.py:41 in step``."""
    own = [frame for frame in frames if "site-packages" not in frame.filename and not is_standard(frame.filename)]
    frame = (own or list(frames))[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"  # noqa: PTH119


def is_internal_frame(path: str) -> bool:
    """Return whether a file belongs to the frames of this package between interpreter, script and torch."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    # Frames of the metrics hooks are between the script and torch.
    metrics = os.path.join(os.path.dirname(os.path.dirname(folder)), "metrics")  # noqa: PTH118, PTH120
    return path == "<frozen runpy>" or path.startswith((folder + os.sep, metrics + os.sep))


def is_standard(path: str) -> bool:
    """Return whether a file belongs to Python itself, or is not a real file."""
    return path.startswith("<") or path.startswith(os.path.dirname(os.__file__) + os.sep)  # noqa: PTH120, PIE810


def collectives() -> list[list[object]]:
    """Return the last collectives on record, oldest first; an empty list if this torch has no flight recorder.

    Each entry is a list: group, number in the group, name, shapes of the input, and whether it is over. NCCL has a
    separate recorder. For a group that both recorders know, NCCL's entries count.
    """
    found = []
    known: set[object] = set()
    for dump in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        more = recorded_by(dump)
        found += [(when, record) for when, record in more if record[0] not in known]
        known |= {record[0] for _, record in more}
    return [record for _, record in sorted(found, key=lambda entry: entry[0])][-MOST_COLLECTIVES:]


def recorded_by(dump: str) -> list[tuple[int, list[object]]]:
    """Return the collectives of one recorder, each with its creation time in nanoseconds; empty if torch lacks the
    recorder.

    Args:
        dump: Name of torch's function that dumps the recorder.
    """
    import json  # noqa: PLC0415

    dump_trace = getattr(sys.modules.get("torch._C._distributed_c10d"), dump, None)
    found = []
    for entry in json.loads(dump_trace(True, False)).get("entries", ()) if dump_trace else ():
        if not entry.get("is_p2p"):
            name = str(entry["profiling_name"]).rpartition(":")[2]
            number, group = int(entry["collective_seq_id"]), str(entry["process_group"][0])
            record = [group, number, name, entry["input_sizes"], bool(entry["retired"])]
            found.append((int(entry.get("time_created_ns", 0)), record))
    return found
