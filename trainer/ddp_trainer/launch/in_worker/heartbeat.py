"""The worker's side of the hang watch: a thread that says over and over that it had its turn, and answers.

Loaded by path into the processes of other people's scripts, by whatever interpreter they chose: standard library only,
and torch only where the script has imported it. Nothing is started before the script has a process group of more than
one rank, so a script without one pays nothing, and forks as it always did. Whatever fails here, training goes on.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any

PULSE_VARIABLE = "DDP_PULSE"
C10D = "torch.distributed.distributed_c10d"
LEARN_SECONDS = 2.0
"""So long after its group began a script has built its model, wrapped it and taken a step: what that needs it has."""
LEARNT = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "PIL"}
    | {"sympy", "mpmath", "networkx", "jinja2", "ddp_trainer"}
)
"""Packages that become the same whichever rank imports them. Others, as Lightning, look at the rank meanwhile."""
MOST_COLLECTIVES = 64
"""So many of the last collectives are told of."""
STACK_SIGNAL_BELOW_LAST = 7
"""The signal for stacks is the so manieth real-time signal before the last: glibc takes the first two, nobody this."""


def install(when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """From now on, watch for a process group."""
    if os.environ.get(PULSE_VARIABLE):
        when_imported(C10D, begin)


def begin(c10d: Any) -> None:
    """Now that torch is there, look for process groups, and answer who wants a trace of a few steps."""
    follow(c10d)
    try:  # noqa: SIM105 - contextlib would cost a worker a millisecond
        load("ondemand_profiler.py").listen(os.environ[PULSE_VARIABLE])
    except Exception:  # noqa: BLE001, S110 - the script is what counts
        pass


def follow(c10d: Any) -> Heartbeat | None:
    """Have torch tell us when its default group comes and goes; None where it cannot.

    ``_update_default_pg`` is private. Where torch has none, no beat begins and the launcher judges no script by it.
    """
    inner = getattr(c10d, "_update_default_pg", None)
    if inner is None:
        return None
    beat = Heartbeat(c10d, os.environ[PULSE_VARIABLE])

    def update(group: Any) -> None:
        beat.pause()
        inner(group)
        if group is not None:
            beat.go_on()

    c10d._update_default_pg = update  # noqa: SLF001 - the guard is above
    return beat


class Heartbeat:
    """The thread, and what it knows."""

    def __init__(self, c10d: Any, path: str) -> None:
        self._c10d = c10d
        self._path = path
        self._owner = os.getpid()
        self._cells: Any = None
        self._thread: Any = None
        self._folder = ""
        self._stacks: Any = None
        self._learn_at = 0.0
        self._pulse = load(os.path.join("..", "..", "process", "heartbeat_page.py"))  # noqa: PTH118

    def pause(self) -> None:
        """The default group goes: there is nothing to wait for any more."""
        if self._cells is not None:
            self._cells[self._pulse.HAS_GROUP] = 0.0

    def go_on(self) -> None:
        """A default group is there."""
        try:
            if os.getpid() == self._owner and self._group_size() > 1:
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

            self._cells = self._pulse.open_cells(self._path)
            self._find_folder()
            self._end = threading.Event()
            self._thread = threading.Thread(target=self._run, name="ddp-beat", daemon=True)
            # A thread that Python freezes inside of torch while it shuts down would end the process by abort.
            atexit.register(self.stop)
            self._look()
            self._learn_at = self._cells[self._pulse.BEAT] + LEARN_SECONDS
            self._thread.start()
        else:
            self._find_folder()
            self._look()
        self._cells[self._pulse.HAS_GROUP] = 1.0

    def stop(self) -> None:
        """No beat any more, and no thread."""
        self.pause()
        self._end.set()
        if self._thread is not None and os.getpid() == self._owner:
            self._thread.join(1.0)

    def _find_folder(self) -> None:
        """Answers belong where the files of this group are; a process may outlive the group before."""
        folder = os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", "")) or os.devnull  # noqa: PTH120
        if folder != self._folder:
            self._folder = folder
            self._register_signal()

    def _register_signal(self) -> None:
        """Where the script leaves the signal alone, have it write all stacks: in C, so also while the GIL is held."""
        import faulthandler  # noqa: PLC0415
        import signal  # noqa: PLC0415

        number = signal.SIGRTMAX - STACK_SIGNAL_BELOW_LAST
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                return
            path = os.path.join(self._folder, "stacks.txt")  # noqa: PTH118
            # Kept open: a signal handler cannot open a file.
            before, self._stacks = self._stacks, open(path, "a")  # noqa: PTH123, SIM115
            faulthandler.register(number, self._stacks, all_threads=True, chain=False)
            if before is not None:
                before.close()
        except (OSError, ValueError, RuntimeError):
            return
        self._cells[self._pulse.SIGNAL] = float(number)

    def _run(self) -> None:
        pulse, cells = self._pulse, self._cells
        self._serve()
        while not self._end.wait(pulse.BEAT_SECONDS):
            if cells[pulse.HAS_GROUP]:
                self._look()
                if self._learn_at and cells[pulse.BEAT] > self._learn_at:
                    self._learn_at = 0.0
                    write_imports(self._path + pulse.IMPORTS)
            asked = cells[pulse.ASKED]
            if asked != cells[pulse.ANSWERED]:
                self._answer()
                cells[pulse.ANSWERED] = asked

    def _serve(self) -> None:
        """Let torch tell of its collectives also when this thread gets no turn."""
        try:
            load("flight_recorder_server.py").start(os.path.splitext(self._path)[0] + ".sock")  # noqa: PTH122
        except Exception:  # noqa: BLE001 - the launcher then knows less
            return

    def _look(self) -> None:
        """Write what can be seen without anybody's help."""
        import time  # noqa: PLC0415

        pulse, cells = self._pulse, self._cells
        try:
            world = self._c10d._world  # noqa: SLF001
            numbers = {group: group._get_sequence_number_for_group() for group in list(world.pg_map)}  # noqa: SLF001
            cells[pulse.SEQUENCE] = float(numbers.get(world.default_pg, -1))
            cells[pulse.TOTAL] = float(sum(numbers.values()))
        except Exception:  # noqa: BLE001 - a backend that does not count, or a torch that tells it otherwise
            cells[pulse.SEQUENCE] = -1.0
        cells[pulse.BEAT] = time.monotonic()

    def _answer(self) -> None:
        """Write where every thread is, and the last collectives."""
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


def write_imports(path: str) -> None:
    """Leave for the zygote of the next workers what this one has imported."""
    try:
        known = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in LEARNT]
        with open(f"{path}.new", "w") as file:  # noqa: PTH123
            file.write("\n".join(name for name, module in known if is_loaded(module)))
        os.replace(f"{path}.new", path)  # noqa: PTH105
    except Exception:  # noqa: BLE001, S110 - a restart then takes longer
        pass


def is_loaded(module: Any) -> bool:
    """Whether it is a module; one that is loaded when it is first touched is not touched, and counts as none."""
    kind: Any = type(module)
    is_lazy = kind.__getattribute__ is not type(sys).__getattribute__
    return not is_lazy and getattr(module, "__spec__", None) is not None


def load(path: str) -> Any:
    """A module of ours by its path from here: the package need not be installed for this interpreter."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    name = f"_ddp_{os.path.basename(path).removesuffix('.py')}"  # noqa: PTH119
    loader = importlib.machinery.SourceFileLoader(name, os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118
    module = type(sys)(name)
    loader.exec_module(module)
    return module


def stacks_of_threads() -> list[tuple[str, Any]]:
    """Every thread but this one, the main thread first: its stack as text, and its frames."""
    import threading  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001 - documented
    stacks = []
    for ident, frame in frames:
        if ident != own:
            summary = traceback.extract_stack(frame)
            summary = traceback.StackSummary.from_list([line for line in summary if not is_ours(line.filename)])
            title = f"Thread {names.get(ident, ident)} (most recent call last):\n"
            stacks.append((title + "".join(summary.format()), summary))
    return stacks


def place_of(frames: Any) -> str:
    """The innermost line that is no library's, as ``train.py:41 in step``."""
    own = [frame for frame in frames if "site-packages" not in frame.filename and not is_standard(frame.filename)]
    frame = (own or list(frames))[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"  # noqa: PTH119


def is_ours(path: str) -> bool:
    """Whether a file only stands between the interpreter and the script."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    # Metrics listen to torch from between the script and torch.
    metrics = os.path.join(os.path.dirname(os.path.dirname(folder)), "metrics")  # noqa: PTH118, PTH120
    return path == "<frozen runpy>" or path.startswith((folder + os.sep, metrics + os.sep))


def is_standard(path: str) -> bool:
    """Whether a file belongs to Python itself, or is none."""
    return path.startswith("<") or path.startswith(os.path.dirname(os.__file__) + os.sep)  # noqa: PTH120, PIE810


def collectives() -> list[list[object]]:
    """Return the last collectives on record, oldest first; an empty list where this torch has no flight recorder.

    Each is its group, its number in there, what it is, the shapes of its input, and whether it is over. NCCL has a
    recorder besides that of the other backends. A group that both know is taken from that of NCCL.
    """
    found = []
    known: set[object] = set()
    for dump in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        more = recorded_by(dump)
        found += [(when, told) for when, told in more if told[0] not in known]
        known |= {told[0] for _, told in more}
    return [told for _, told in sorted(found, key=lambda each: each[0])][-MOST_COLLECTIVES:]


def recorded_by(dump: str) -> list[tuple[int, list[object]]]:
    """Return the collectives of one recorder and the times at which they were made; none where there is no such one."""
    import json  # noqa: PLC0415

    ask = getattr(sys.modules.get("torch._C._distributed_c10d"), dump, None)
    found = []
    for entry in json.loads(ask(True, False)).get("entries", ()) if ask else ():
        if not entry.get("is_p2p"):
            name = str(entry["profiling_name"]).rpartition(":")[2]
            number, group = int(entry["collective_seq_id"]), str(entry["process_group"][0])
            told = [group, number, name, entry["input_sizes"], bool(entry["retired"])]
            found.append((int(entry.get("time_created_ns", 0)), told))
    return found
