"""ddp-launch on one node, where torchrun users begin: no store, no endpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch_harness import LAUNCH, LOOP, Stage, is_alive, wait_until
from tests.support.ports import free_port
from tests.support.programs import captured


def test_workers_get_the_environment_of_torchrun(stage: Stage) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE "
        "MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
        "TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_SIGNALS_TO_HANDLE OMP_NUM_THREADS DDP_GENERATION "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE THP_MEM_ALLOC_ENABLE"
    )
    script = stage.script(f"import os\nprint('env', *(os.environ.get(n) for n in '{names}'.split()))")
    whole_lines = ["--tee", "1", "--log-line-prefix-template", ""]
    run = stage.launch("--nproc-per-node", "2", "--max-restarts", "4", *whole_lines, script)
    assert run.code() == 0
    lines = sorted(line for line in run.lines if line.startswith("env"))
    assert lines == [
        "env 0 0 2 2 0 1 0 default 2 127.0.0.1 0 4 False SIGTERM,SIGINT,SIGHUP,SIGQUIT 1 1 1 1",
        "env 1 1 2 2 0 1 1 default 2 127.0.0.1 0 4 False SIGTERM,SIGINT,SIGHUP,SIGQUIT 1 1 1 1",
    ]


WHAT_A_SCRIPT_SEES = """
import sys, os, json, pickle
class Here: pass
print(json.dumps({"argv": sys.argv, "path0": sys.path[0], "name": __name__, "file": __file__,
    "spec": __spec__ and [__spec__.name, __spec__.origin],
    "package": __package__, "doc": __doc__, "main": sys.modules["__main__"].__dict__ is globals(),
    "pickled": pickle.dumps(Here).hex(), "globals": sorted(globals()), "orig_argv": sys.orig_argv[1:],
    "annotations": __annotations__, "flags": str(sys.flags), "cached": __cached__}))
"""


def seen_by(command: list[str], cwd: Path) -> dict[str, object]:
    text = captured(command, cwd=cwd, check=True).stdout
    return json.loads(text)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("folder/script.py", ["folder/script.py", "--nnodes", "x"]),
        ("package/part.py", ["-m", "package.part", "--nnodes", "x"]),
        ("app/__main__.py", ["app"]),
    ],
    ids=["script", "module", "directory"],
)
def test_a_program_sees_what_python_would_show_it(tmp_path: Path, file: str, words: list[str]) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(WHAT_A_SCRIPT_SEES)
    assert seen_by([*LAUNCH, *words], tmp_path) == seen_by([sys.executable, "-u", *words], tmp_path)


def test_a_line_of_a_worker_is_one_write_since_the_ranks_of_a_node_share_the_pipe(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('rank', 0, 'of', 2)\nprint('end')\n")
    saved, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with saved, given:
        subprocess.run([*LAUNCH, "script.py"], cwd=tmp_path, check=True, stdout=given, stderr=subprocess.DEVNULL)
        assert [saved.recv(100), saved.recv(100)] == [b"rank 0 of 2\n", b"end\n"]


def test_any_program_runs_without_python(stage: Stage) -> None:
    run = stage.launch(
        "--no-python", "--nproc-per-node", "2", "sh", "-c", "echo rank=$RANK local=${local_rank}x; exit 0"
    )
    assert run.code() == 0
    assert {line for line in run.lines if line.startswith("rank")} == {"rank=0 local=0x", "rank=1 local=1x"}


STEPS_THEN_FAILS = """
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
raise RuntimeError("the same every time")
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(0)", 0), ("sys.exit(42)", 42), ("os._exit(7)", 7), ("raise SystemExit('words')", 1)]
)
def test_the_exit_code_of_the_script_passes_through(stage: Stage, ending: str, code: int) -> None:
    assert stage.launch(stage.script(f"import os, signal, sys\n{ending}")).code() == code


@pytest.mark.parametrize(
    ("ending", "code", "restarts"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, 2),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, 0),
        ("os._exit(171)", 171, 0),
    ],
)
def test_a_spent_budget_ends_with_a_code_that_no_controller_retries_and_keeps_the_workers_own(
    stage: Stage, tmp_path: Path, ending: str, code: int, restarts: int
) -> None:
    script = stage.script(f"import os, signal\nos.write(1, b'runs\\n')\n{ending}")
    log = tmp_path / "termination"
    files = {"DDP_RUN_DIR": str(tmp_path), "DDP_TERMINATION_LOG": str(log), "DDP_METRICS_PORT": "0"}
    run = stage.launch("--max-restarts", str(restarts), script, **files)
    assert run.code() == 93, run.output
    assert (f"All {restarts} restarts are spent." in run.output) == bool(restarts)
    assert run.lines.count("runs") == 1 + restarts
    message = json.loads(log.read_text())
    assert (message["exit_code"], message["pod_exit_code"]) == (code, 93)
    assert sum(message["restarts"].values()) == restarts
    assert json.loads((tmp_path / "error.json").read_text())["exit_code"] == code


def test_a_script_that_raises_is_reported_in_files_and_in_one_sentence(stage: Stage, tmp_path: Path) -> None:
    script = stage.script("import os, time\nif os.environ['RANK'] == '1': raise KeyError('the cause')\ntime.sleep(600)")
    log = tmp_path / "termination"
    run = stage.launch(
        "--nproc-per-node", "2", script, DDP_RUN_DIR=str(tmp_path / "run"), DDP_TERMINATION_LOG=str(log),
        DDP_POD_NAME="w-0", DDP_METRICS_PORT="0",
    )  # fmt: skip
    assert run.code() == 1
    error = json.loads((tmp_path / "run" / "error.json").read_text())
    assert error["rank"] == 1
    assert error["pod"] == "w-0"
    assert error["exit_code"] == 1
    assert error["message"] == "KeyError: 'the cause'"
    assert error["stack"].splitlines()[1].endswith('script.py", line 2, in <module>')
    message = log.read_bytes()
    assert len(message) <= 4096
    assert json.loads(message)["reason"] == "python_exception"
    sentence = f"Rank 1 on w-0 ({socket.gethostname()}) failed first, it exited with code 1: KeyError: 'the cause'."
    assert run.lines[-3:-1] == ["ddp-launch: Restarts by cause: none.", f"ddp-launch: {sentence}"]
    assert (error["host"], error["type"]) == (socket.gethostname(), "KeyError")
    assert "bootstrap.py" not in run.output


def test_an_error_file_of_the_scripts_own_record_is_left_as_it_is(stage: Stage, tmp_path: Path) -> None:
    script = stage.script(
        "import json, os\n"
        "error = {'message': {'message': 'mine', 'extraInfo': {'py_callstack': 's', 'timestamp': '1'}}}\n"
        "json.dump(error, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\nraise ValueError('other')"
    )
    run = stage.launch(script, DDP_TERMINATION_LOG=str(tmp_path / "log"))
    assert run.code() == 1
    assert json.loads((tmp_path / "log").read_text())["message"] == "mine"


def test_the_summary_of_the_script_is_kept_and_completed(stage: Stage, tmp_path: Path) -> None:
    script = stage.script(
        "import json, os\njson.dump({'accuracy': 0.98, 'result': 'succeeded'}, "
        "open(os.path.join(os.environ['DDP_RUN_DIR'], 'summary.json'), 'w'))"
    )
    run = stage.launch(
        script, DDP_RUN_DIR=str(tmp_path / "run"), DDP_TERMINATION_LOG=str(tmp_path / "log"), DDP_METRICS_PORT="0"
    )
    assert run.code() == 0
    for path in (tmp_path / "run" / "summary.json", tmp_path / "log"):
        summary = json.loads(path.read_text())
        assert (summary["accuracy"], summary["restarts"]) == (0.98, {})


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_workers_and_is_waited_for(stage: Stage, which: signal.Signals) -> None:
    script = stage.script(
        "import os, signal, sys, time\n"
        "def stop(number, _):\n    time.sleep(0.3)\n    print('saved after', number, flush=True)\n    sys.exit(0)\n"
        "for number in (1, 2, 15): signal.signal(number, stop)\nprint('ready', flush=True)\n"
        "while True: time.sleep(0.05)"  # a signal just before a sleep does not end it, and its handler runs after it
    )
    run = stage.launch(script)
    run.line("^ready")
    run.send(which)
    assert run.code() == 143
    assert f"saved after {int(which)}" in run.lines


def test_a_second_signal_does_not_wait(stage: Stage) -> None:
    script = stage.script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    run = stage.launch("--shutdown-timeout", "600", script)
    run.line("^ready")
    run.send(signal.SIGTERM)
    run.send(signal.SIGINT)
    assert run.code() == 143


def test_workers_die_with_a_launcher_that_is_killed(stage: Stage) -> None:
    run = stage.launch("--nproc-per-node", "2", stage.script(LOOP), stage.done())
    workers = [int(run.line(rf"rank={rank} .*pid=(\d+)")[1]) for rank in (0, 1)]
    run.send(signal.SIGKILL)
    run.code()
    wait_until(lambda: not any(map(is_alive, workers)), "workers outlived their launcher")


def test_one_rank_that_ends_early_waits_for_the_others(stage: Stage) -> None:
    script = stage.script(LOOP.replace("while", "while rank == '1' and "))
    run = stage.launch("--nproc-per-node", "2", script, stage.done())
    run.line("rank=0 .*done")
    run.line("rank=1 .*runs")
    stage.finish()
    assert run.code() == 0


def test_processes_of_multiprocessing_find_their_functions(stage: Stage) -> None:
    script = stage.script(
        "import multiprocessing as mp\n"
        "def work(n): return n * n\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        with mp.get_context(method).Pool(2) as pool: print(method, pool.map(work, [1, 2, 3]), flush=True)\n"
    )
    run = stage.launch(script)
    assert run.code() == 0
    assert [f"{method} [1, 4, 9]" in run.lines for method in ("spawn", "fork", "forkserver")] == [True] * 3


def test_lines_are_whole_marked_and_kept_in_files(stage: Stage, tmp_path: Path) -> None:
    script = stage.script(
        "import os, sys\nfor n in range(300): print('x' * 2000, n)\n"
        "print('error line', file=sys.stderr)\nsys.stdout.write('no end')"
    )
    run = stage.launch(
        "--nproc-per-node", "2", "--tee", "3", "--log-dir", str(tmp_path / "logs"), "--rdzv-id", "id",
        "--log-line-prefix-template", "[${role_name} ${local_rank}/${rank}] ", script,
    )  # fmt: skip
    assert run.code() == 0
    for rank in (0, 1):
        mark = f"[default {rank}/{rank}] "
        own = [line.removeprefix(mark) for line in run.lines if line.startswith(mark)]
        assert [line for line in own if line.startswith("x")] == [f"{'x' * 2000} {n}" for n in range(300)]
        assert "no end" in own
        assert "error line" in own
        (folder,) = (tmp_path / "logs").glob(f"id_*/attempt_0/{rank}")
        assert (folder / "stdout.log").read_text().endswith("no end")
        assert (folder / "stderr.log").read_text() == "error line\n"
    assert not [line for line in run.lines if line and not re.match(r"\[default|ddp-launch", line)]


def test_the_filter_shows_the_ranks_that_were_asked_for(stage: Stage) -> None:
    script = stage.script("import os\nprint('rank ' + os.environ['RANK'])")
    run = stage.launch("--nproc-per-node", "3", "--local-ranks-filter", "0,2", "--tee", "1", script)
    assert run.code() == 0
    assert sorted(line for line in run.lines if "rank" in line) == ["[default0]:rank 0", "[default2]:rank 2"]


def test_no_temporary_folder_is_left_behind(stage: Stage, tmp_path: Path) -> None:
    run = stage.launch(stage.script("raise ValueError"), TMPDIR=str(tmp_path))
    assert run.code() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


FAILS_ONCE = """
import os, sys
sys.stdout.write("meets {MASTER_PORT} {TORCHELASTIC_MAX_RESTARTS}\\n".format(**os.environ))
sys.stdout.flush()
import torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(5)
dist.barrier()
dist.destroy_process_group()
"""


SAVES_ON_SIGNAL = """
import os, signal, sys, time
from pathlib import Path
def say(text): os.write(1, f"{text}\\n".encode())
signal.signal(signal.SIGUSR1, lambda *_: say("saving " + os.environ["RANK"]))
say("ready " + os.environ["RANK"])
while not Path(sys.argv[1]).exists(): time.sleep(0.05)
"""


def test_a_signal_that_means_nothing_to_the_launcher_reaches_the_workers_that_handle_it(stage: Stage) -> None:
    run = stage.launch("--nproc-per-node", "2", stage.script(SAVES_ON_SIGNAL), stage.done())
    run.line("ready 0")
    run.line("ready 1")
    run.send(signal.SIGUSR2)
    run.line("SIGUSR2 was not passed on, because no worker handles it")
    run.send(signal.SIGUSR1)
    run.line("saving 0")
    run.line("saving 1")
    stage.finish()
    assert run.code() == 0


def test_a_launcher_that_a_script_starts_does_not_take_the_flags_of_its_own(stage: Stage) -> None:
    statement = (
        "os.write(1, f\"inner {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())"  # as a whole line
    )
    inner = stage.script(f"import os\n{statement}", "inner.py")
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", inner]
    outer = stage.script(
        "import os, subprocess, sys\n"
        "print('flags', [name for name in os.environ if name.startswith('PET_')], flush=True)\n"
        f"sys.exit(subprocess.call([sys.executable, *{words!r}]))"
    )
    run = stage.launch(outer, PET_NNODES="1", PET_RDZV_BACKEND="c10d", PET_MAX_RESTARTS="2")
    assert run.code() == 0, run.output
    assert "flags []" in run.lines
    assert sorted(line for line in run.lines if line.startswith("inner")) == ["inner 0 of 2", "inner 1 of 2"]


def test_a_script_that_is_edited_while_it_runs_is_named_when_workers_start_again(stage: Stage) -> None:
    text = "import os, time\nos.write(1, f'pid={os.getpid()}\\n'.encode())\ntime.sleep(600)"
    script = stage.script(text)
    run = stage.launch("--max-restarts", "2", script, DDP_FORK_SERVER="0")
    first = int(run.line(r"pid=(\d+)")[1])
    seen = len(run.lines)
    os.kill(first, signal.SIGKILL)
    second = int(run.line(r"pid=(\d+)", after=seen)[1])
    assert "has changed" not in run.output
    stage.script(f"# edited\n{text}")
    os.kill(second, signal.SIGKILL)
    run.line(r"script\.py has changed meanwhile: workers that start now run the new text")


@pytest.mark.parametrize("form", ["--master-port={}", "--rdzv-endpoint=localhost:{}"])
def test_one_node_restarts_at_a_port_that_the_user_has_named(stage: Stage, form: str) -> None:
    port = str(free_port())
    flags = ["--nproc-per-node", "2", "--max-restarts", "2", form.format(port)]
    run = stage.launch(*flags, stage.script(FAILS_ONCE))
    assert run.code() == 0, run.output
    assert [line for line in run.lines if line.startswith("meets")] == [f"meets {port} 2"] * 4
    assert "ddp-launch: Restarts by cause: failure 1." in run.lines
    assert "secret" not in run.output


def test_a_port_of_the_user_that_is_in_use_ends_the_launch(stage: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = stage.launch("--max-restarts", "2", "--master-port", str(port), stage.script("print('started')"))
        assert run.code() == 2
    assert f"Port {port}, at which the ranks are to meet, is not available" in run.output
    assert "started" not in run.lines


@pytest.mark.parametrize(
    ("text", "groups", "sentence"),
    [
        ("import no_such_module", 1, "No module named 'no_such_module'. No restart can heal this"),
        ("raise SystemExit(7)", 3, "exited with code 7. It came 3 times in the same words before the first step"),
        (STEPS_THEN_FAILS, 5, "Restarts by cause: failure 4."),
    ],
)
def test_an_error_that_cannot_heal_is_not_retried(stage: Stage, text: str, groups: int, sentence: str) -> None:
    run = stage.launch("--max-restarts", "4", stage.script(text), DDP_RUN_DIR=str(stage.folder / "run"))
    assert run.code() == (7 if "7" in text else 1)
    assert sentence in run.output
    assert len([line for line in run.lines if line.startswith("ddp-launch: generation")]) == groups
    assert run.output.count("ddp-launch: failed: Rank 0 on ") == groups


def test_metrics_that_have_no_port_do_not_stop_training(stage: Stage, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        run = stage.launch("--metrics-port", port, stage.script(LOOP), stage.done(), DDP_RUN_DIR=str(tmp_path / "run"))
        run.line("rank=0 .*runs")
        run.line(rf"port {port} of 127\.0\.0\.1 is in use")
        stage.finish()
        assert run.code() == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.py"], "There is no script 'nothing.py'"),
        (["-m", "no_such_module"], "There is no module 'no_such_module'"),
        (["--no-python", "no-such-program"], "There is no program 'no-such-program'"),
        (["--nodes", "2", "x.py"], "Unknown flag --nodes; did you mean --nnodes?"),
        ([], "No script was given"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_in_one_sentence(stage: Stage, arguments: list[str], sentence: str) -> None:
    run = stage.launch(*arguments)
    assert run.code() == 2
    lines = [line for line in run.lines if line]
    assert len(lines) == 1
    assert lines[0].startswith("ddp-launch: ")
    assert sentence in lines[0]


def test_a_launch_on_one_node_by_torchruns_usual_endpoint_needs_no_secret(stage: Stage) -> None:
    flags = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    run = stage.launch(*flags, stage.script("print('trained')"), DDP_SECRET_FILE="")
    assert run.code() == 0
    assert "trained" in run.lines
