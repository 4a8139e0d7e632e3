"""Process of the fork server: it imports torch once and becomes a worker by forking, so a restart imports nothing.

``python fork_server_process.py AGENT_PID SOCKET_FD[,PARENT_FD] MODULES [FILE]``

The interpreter of the workers runs this file by path in their environment. FILE contains more modules, one per line; of
a Python script, the modules of its import statements count. A later request can name another such file.
The process forks only while it has a single thread and has not initialized CUDA. Otherwise it exits, and workers start
the usual way. A fork looks like a fresh process: session, environment, arguments, working directory, streams, random
state and ``__main__``. Its parent is the agent.

With PARENT_FD, the socket of a resident parent, the process outlives an agent that crashes. Then it forks the next
agent together with the fork server of that agent: :mod:`ddp_trainer.launch.host.parent_link`.
"""

from __future__ import annotations

import sys

SAFE_PATH = getattr(sys.flags, "safe_path", False)
if not SAFE_PATH:
    sys.path.pop(0)

import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import time  # noqa: E402

LENGTH = struct.Struct("!Q")
STANDARD_STREAMS = 3
"""Number of descriptors in the request of a resident parent: stdin, stdout and stderr of the agent."""

READY = LENGTH.pack(0)
"""Sent when all modules are imported, also those of a request; other numbers are process ids."""

IMPORTED_LATE = ("torch._dynamo",)
"""Modules that torch imports when a script makes an optimizer or wraps its model: 2 s of processor time."""

IMPORTS_LATE = ("optim", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
"""Names in a script at which torch imports :data:`IMPORTED_LATE`."""

DESCRIPTORS = 4
"""Number of descriptors in a request: stdout, stderr, the gate at which the fork waits, and the worker's end of its
channel.
"""

CHANNEL = "DDP_CHANNEL"
"""Name of ``Env.CHANNEL``, which this file, run by path, cannot import."""

PARENT_LINK = "DDP_PARENT_LINK"
"""Name of ``Env.PARENT_LINK``, which this file, run by path, cannot import."""

GO = b"g"
PATIENCE_SECONDS = 2.0


def load_bootstrap():  # type: ignore[no-untyped-def] # noqa: ANN201 - a module found by path has no type
    """Return the module ``bootstrap.py`` beside this file, under a private name that scripts do not import."""
    path = os.path.join(os.path.dirname(__file__), "bootstrap.py")  # noqa: PTH118, PTH120
    spec = importlib.util.spec_from_file_location("_ddp_bootstrap", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    if not SAFE_PATH:
        sys.path.insert(0, "")  # the module removes this entry, as when it is run by path
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    module.OWN_FILES.add(__file__)
    return module


def names_in(files: list[str], packages: frozenset[str]) -> list[str]:
    """Return the names of modules of ``packages`` in these files: lists that workers wrote, or scripts."""
    names = []
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 10 ms
                text = file.read()
            names += names_in_script(text) if path.endswith(".py") else text.split()
        except (OSError, ValueError, SyntaxError):
            continue  # the worker will report what is wrong with its script
    return [name for name in names if name.partition(".")[0] in packages]


def names_in_script(text: str) -> list[str]:
    """Return the modules that a script imports when it starts, or has torch import later."""
    import ast  # noqa: PLC0415 - only for scripts

    names: list[str] = []
    left: list[ast.stmt] = list(ast.parse(text).body)
    while left:
        node = left.pop(0)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            # What is imported from a package may be a module, which the package alone would not load.
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            left = [*node.body, *left]
    return [*names, *(IMPORTED_LATE if any(name in text for name in IMPORTS_LATE) else ())]


def preload(names: list[str]) -> None:
    """Import these modules. A module that cannot be imported is skipped: the worker reports the error."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - the worker will fail with the same error
            continue


def is_safe_to_fork() -> bool:
    """Return whether a fork loses no thread and can use CUDA.

    OpenBLAS starts threads when numpy is imported. It ends them before every fork and starts them again when it
    multiplies. So only threads that are left after a fork count. CUDA works in no fork of a process that has started
    its driver, as ``torch.cuda.is_available()`` does without a context. Only a fork can find this out.
    """
    trial = os.fork()
    if not trial:
        lost = True
        try:
            lost = is_cuda_lost()
        finally:
            os._exit(int(lost))
    _, status = os.waitpid(trial, 0)
    return status == 0 and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - pathlib costs 10 ms


def is_cuda_lost() -> bool:
    """Return, in a fork, whether torch finds that CUDA cannot be used here."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return False
    # A private name of torch; without it only a context can be detected.
    in_bad_fork = getattr(cuda, "_is_in_bad_fork", lambda: False)
    return bool(cuda.is_initialized() or in_bad_fork())


def requests(control: socket.socket, count: int):  # type: ignore[no-untyped-def] # noqa: ANN201 - a generator of JSON
    """Yield the requests with their ``count`` descriptors or none, until the other side closes the connection."""
    while request := receive_request(control, count):
        yield request


def receive_request(control: socket.socket, count: int) -> tuple[dict, list] | None:  # type: ignore[type-arg] # JSON
    """Return the next request; None if the other side has closed the connection, also within a request."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(control, LENGTH.size, count)
        (length,) = LENGTH.unpack(head)
        body = control.recv(length, socket.MSG_WAITALL)
        if len(body) == length and len(descriptors) in {0, count}:
            return json.loads(body), descriptors
    except (ConnectionError, struct.error):
        pass  # it has not read everything, or has sent no length
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def double_fork(control: socket.socket) -> bool:
    """Fork a grandchild, which the agent or the resident parent inherits as the subreaper, and send its process id.
    Return True in the grandchild.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    grandchild = os.fork()
    if grandchild:
        control.sendall(LENGTH.pack(grandchild))
        os._exit(0)
    return True


def reseed_rngs() -> None:
    """Seed numpy and torch with new random states. Python's generator reseeds itself at a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def begin_session(parent: int, bootstrap) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    """Begin a session as a child of ``parent``, and die with it."""
    os.setsid()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while os.getppid() != parent and time.monotonic() < deadline:
        time.sleep(0.0002)  # the intermediate process is about to exit
    bootstrap.set_parent_death_signal(parent)


def run_worker(request: dict, descriptors: list, agent: int, bootstrap) -> None:  # type: ignore[no-untyped-def, type-arg] # noqa: ANN001
    """Turn a fork into the equivalent of a fresh process, and run the program."""
    begin_session(agent, bootstrap)
    out, err, gate, channel = descriptors
    if os.read(gate, 1) != GO:
        os._exit(0)  # the agent gave this one up
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err, gate):
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ[CHANNEL] = str(channel)
    reseed_rngs()
    importlib.invalidate_caches()
    gc.enable()
    bootstrap.run(request["kind"], request["target"], request["arguments"])


def is_safe_after_imports() -> bool:
    """Return whether this process can fork workers, after its last import."""
    gc.freeze()  # keeps a fork's garbage collector from touching, and so copying, shared pages
    return is_safe_to_fork()


def serve(agent: int, control: socket.socket, parent, bootstrap) -> bool:  # type: ignore[no-untyped-def] # noqa: ANN001
    """Fork workers until the agent is gone. Return True in a worker whose program is over."""
    control.sendall(READY)
    if parent:
        bootstrap.set_parent_death_signal(agent, 0)
        parent.sendall(LENGTH.pack(os.getpid()))
    for request, descriptors in requests(control, DESCRIPTORS):
        if not descriptors:
            gc.disable()
            preload(names_in([request["imports"]], bootstrap.preload_packages()))
            if not is_safe_after_imports():
                sys.exit()
            control.sendall(READY)
            continue
        if double_fork(control):
            for connection in filter(None, (control, parent)):
                connection.close()
            run_worker(request, descriptors, agent, bootstrap)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
    control.close()
    return False


def execute(request: dict, descriptors: list, environment: dict) -> None:  # type: ignore[type-arg]
    """Replace this process by the agent."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.execve(request["command"][0], request["command"], environment)  # noqa: S606 - no shell is wanted


def start_agent(parent: socket.socket, bootstrap) -> tuple[int, socket.socket] | None:  # type: ignore[no-untyped-def] # noqa: ANN001
    """Start the next agent at the request of the resident parent, whose end closes the connection.

    Returns:
        In the fork server of the new agent, the agent's process id and the socket to it. None if the parent is gone.
    """
    for request, descriptors in requests(parent, STANDARD_STREAMS):
        if not double_fork(parent):
            os._exit(0)  # Python's own end would take the processors from the agent
        try:
            begin_session(request["parent"], bootstrap)
            agent = os.getpid()
            agent_end, server_end = socket.socketpair()
            fork_server = os.fork()
            if not fork_server:
                os.setsid()
                for descriptor in (*descriptors, agent_end.detach()):
                    os.close(descriptor)
                return agent, server_end
            agent_end.set_inheritable(True)
            link = f"{parent.fileno()},{fork_server},{agent_end.fileno()}"
            execute(request, descriptors, {**request["environment"], PARENT_LINK: link})
        except Exception:  # noqa: BLE001 - an exit code would be one of the agent, and end the parent
            os.kill(os.getpid(), signal.SIGKILL)
    return None


def main() -> None:
    """Serve requests until the agent is gone, and then those of the next one; in a fork, run the worker's program."""
    agent = int(sys.argv[1])
    control, *others = [socket.socket(fileno=int(number)) for number in sys.argv[2].split(",")]
    parent = others[0] if others else None
    names = [name for name in sys.argv[3].split(",") if name]
    bootstrap = load_bootstrap()  # type: ignore[no-untyped-call]
    bootstrap.set_parent_death_signal(agent)
    gc.disable()  # imports make no garbage, and the search takes a seventh of their time; see run_worker
    preload([*names, *names_in(sys.argv[4:], bootstrap.preload_packages())])
    if not is_safe_after_imports():
        return
    next_agent: tuple[int, socket.socket] | None = (agent, control)
    while next_agent and not serve(*next_agent, parent, bootstrap):
        next_agent = start_agent(parent, bootstrap) if parent else None


if __name__ == "__main__":
    main()
