"""The task ``digits``."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddp_trainer.train.utils.errors import BadData
from ddp_workloads.digits import Digits, find_data_file


def test_the_digits_are_split_once_and_for_all() -> None:
    digits = Digits()
    train, test = digits.train_samples(), digits.test_samples()
    assert (len(train), len(test)) == (1437, 360)
    assert test.labels.bincount().tolist() == [36] * 10
    assert (train.images.min(), train.images.max()) == (0, 1)
    assert train.labels[:8].tolist() == Digits().train_samples().labels[:8].tolist()
    everything = torch.cat([train.images, test.images])
    assert len(everything.unique(dim=0)) == 1797


def test_the_digits_come_without_importing_scikit_learn() -> None:
    imported = "from ddp_workloads.digits import Digits; Digits()"
    program = f"import sys; {imported}; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_file_of_digits_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"cannot be read from .*nowhere.gz: No such file"):
        Digits(tmp_path / "nowhere.gz")


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", find_data_file().read_bytes()[:-100], gzip.compress(b"1,2,three\n"), gzip.compress(b"1,2,3\n")],
    ids=["empty", "not gzip", "cut short", "not a number", "too few columns"],
)
def test_a_damaged_file_of_digits_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "digits.gz").write_bytes(content)
    with pytest.raises(BadData) as info:
        Digits(tmp_path / "digits.gz")
    assert len(str(info.value).splitlines()) == 1
    assert info.value.exit_code == 2
