"""Hooks that run in a worker before its script."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.in_worker import bootstrap
from ddp_trainer.launch.in_worker.import_hook import call_after_import
from tests.support.programs import captured

PACKAGE = "package_of_a_test"


def file_of(name: str, folder: Path) -> Path:
    """Return the path of the module with this name."""
    return folder.joinpath(*name.split(".")).with_suffix(".py")


@pytest.fixture(params=["awaited_by_a_test", f"{PACKAGE}.inner"])
def awaited(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = str(request.param)
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").touch()
    file_of(name, tmp_path).write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    for module in (name, PACKAGE):
        sys.modules.pop(module, None)


def test_the_callback_gets_a_module_after_its_import_and_no_other(awaited: str) -> None:
    imported: list[ModuleType] = []
    before = list(sys.meta_path)
    call_after_import(awaited, imported.append)
    (finder,) = (hook for hook in sys.meta_path if hook not in before)
    assert finder.find_spec("json", None) is None
    assert not imported
    module = importlib.import_module(awaited)
    assert (imported, module.VALUE) == ([module], 7)
    assert sys.meta_path == before, "the finder is removed"


def test_the_callback_gets_a_module_that_is_imported_already(awaited: str) -> None:
    module = importlib.import_module(awaited)
    before, imported = list(sys.meta_path), []
    call_after_import(awaited, imported.append)
    assert imported == [module]
    assert sys.meta_path == before


def test_the_callback_gets_no_module_that_fails(awaited: str, tmp_path: Path) -> None:
    file_of(awaited, tmp_path).write_text("raise ValueError('broken')\n")
    imported: list[ModuleType] = []
    call_after_import(awaited, imported.append)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(awaited)
    assert not imported


HOOKS = Path(bootstrap.__file__).parent / "python_path"
ROOT = Path(bootstrap.__file__).parents[3]
SHOW = """
import sys, torch, of_the_user
print("hooked", "_of_the_image" in sys.modules, "ddp_trainer.metrics.record.autolog" in sys.modules)
"""


def output(directory: Path, **variables: str) -> str:
    (directory / "sitecustomize.py").write_text("import sys\nsys.modules['_of_the_image'] = sys\n")
    hooks = directory / "mine"
    hooks.mkdir()
    (hooks / "of_the_user.py").touch()
    paths = os.pathsep.join([str(hooks), str(HOOKS), str(ROOT), str(directory)])
    environ = {**os.environ, "PYTHONPATH": paths, Env.METRICS_DIR: str(directory), **variables}
    return captured([sys.executable, "-c", SHOW], env=environ, check=True).stdout


def test_a_rank_counts_its_steps_once_it_has_imported_torch(tmp_path: Path) -> None:
    assert output(tmp_path, RANK="0", LOCAL_RANK="0") == "hooked True True\n"


def test_other_processes_of_the_pod_are_left_alone(tmp_path: Path) -> None:
    assert output(tmp_path) == "hooked True False\n"


@pytest.mark.parametrize(
    "start", [["bin/torchrun"], ["-u", "-X", "utf8", "-Bum", "torch.distributed.run"], ["-mtorch.distributed.run"]]
)
def test_torchrun_becomes_the_launcher_with_the_flags_of_the_platform(tmp_path: Path, start: list[str]) -> None:
    runtime = tmp_path / "runtime"
    shutil.copytree(
        ROOT / "ddp_trainer", runtime / "ddp_trainer", ignore=shutil.ignore_patterns("train", "__pycache__")
    )
    shutil.copy(runtime / "ddp_trainer" / "runtime_start.py", runtime / "__main__.py")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("raise SystemExit('stock')\n")
    show = "import os, sys\nos.write(1, f\"{os.environ['RANK']} {sys.argv[1:]}\\n\".encode())\n"
    (tmp_path / "show.py").write_text(show)
    environ = {
        "PATH": os.defpath,
        "PYTHONPATH": str(runtime / HOOKS.relative_to(ROOT)),
        Env.LAUNCH_FLAGS: "--standalone --nproc-per-node=2 --log-line-prefix-template='[x] '",
    }
    command = [sys.executable, *start, "--nnodes=8", "--rdzv-endpoint=gone.example.com:1", "show.py", "--nnodes", "7"]
    done = captured(command, cwd=tmp_path, env=environ)
    assert sorted(done.stdout.splitlines()) == [f"{rank} ['--nnodes', '7']" for rank in (0, 1)], done.stderr


FILL = "import os\nfile = open(os.environ['TARGET'], 'wb', buffering=0)\nwhile True: file.write(bytes(1 << 16))\n"


@pytest.mark.parametrize("target", ["full/model.pt", "full"])
def test_the_folder_or_the_open_file_without_room_is_part_of_the_message(tmp_path: Path, target: str) -> None:
    full, error_file, script = tmp_path / "full", tmp_path / "error.json", tmp_path / "fill.py"
    full.mkdir()
    script.write_text(FILL)
    command = [sys.executable, str(bootstrap.__file__), str(os.getpid()), "script", str(script)]
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    command = [*mounted, 'mount -t tmpfs -o size=1m none "$1"; shift; exec "$@"', "sh", str(full), *command]
    environ = {"TMPDIR": str(full if target == "full" else tmp_path), "TORCHELASTIC_ERROR_FILE": str(error_file)}
    environ |= {"TARGET": str(full / "model.pt")}
    done = captured(command, env=os.environ | environ)
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip("No small file system can be mounted.")
    message = json.loads(error_file.read_text())["message"]["message"]
    assert message == f"OSError: [Errno 28] No space left on device ({tmp_path / target} is full)"
