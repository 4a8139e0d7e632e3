"""Finding a task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddp_trainer.train.data.batch_reader import data_digest
from ddp_trainer.train.data.task import Task, load_task
from ddp_trainer.train.utils.errors import BadConfig, BadTask
from ddp_workloads.digits import Digits
from tests.support.train_builders import Lines

HERE = "tests.support.train_builders"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digit", "There is no task 'digit'. Did you mean digits?"),
        (":f", "There is no task ':f'."),
        ("no_such_module:f", "names the module 'no_such_module', which is not on the path."),
        ("no_such.module:f", "The module of the task 'no_such.module:f' cannot be found: No module named 'no_such'."),
        (f"{HERE}:Line", f"Did you mean {HERE}:Lines?"),
        (f"{HERE}:zzzzzz", f"The module '{HERE}' has no 'zzzzzz'. Define zzzzzz in "),
        (f"{HERE}:ALONE", "is of type Group. Name a function or a class."),
        ("builtins:divmod", "builtins:divmod cannot be called without its argument 'x'"),
        ("builtins:dict", "makes a dict without name, model, train_samples"),
    ],
)
def test_what_is_not_a_task_is_refused_with_the_way_out(name: str, sentence: str) -> None:
    with pytest.raises(BadTask) as info:
        load_task(name)
    assert sentence in str(info.value)
    assert info.value.exit_code == 2


def test_a_factory_gets_the_flags_that_it_has_parameters_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 100)
    task = load_task("text", {"data": tmp_path, "window": 7, "model": "gpt:layers=1"})
    assert isinstance(task, Task)
    assert task.name == "text/7"
    assert len(task.model().blocks) == 1


@pytest.mark.parametrize(
    ("name", "flags", "sentence"),
    [
        ("text", {}, "The task 'text' needs --data. Give it."),
        ("digits", {"data": Path("d")}, "The task 'digits' does not take --data. Leave it out."),
        ("text", {"image_size": 4}, "The task 'text' does not take --image-size."),
    ],
)
def test_a_flag_that_a_task_lacks_or_does_not_take_is_told(name: str, flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        load_task(name, flags)


def test_the_digest_of_data_changes_with_a_sample() -> None:
    class Moved(Lines):
        def __init__(self) -> None:
            super().__init__()
            self._x = self._x + 1

    assert data_digest(Lines(), Lines().train_samples()) == data_digest(Lines(), Lines().train_samples())
    assert data_digest(Lines(), Lines().train_samples()) != data_digest(Moved(), Moved().train_samples())
    assert data_digest(Digits(), Digits().train_samples()) == Digits().data_digest()
