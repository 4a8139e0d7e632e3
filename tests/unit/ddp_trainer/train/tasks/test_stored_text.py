"""Text that is not read into memory has the windows and the split of text that is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddp_trainer.train.storage.object_storage import open_storage
from ddp_trainer.train.tasks import text
from ddp_trainer.train.tasks.text import Text, Windows
from ddp_trainer.train.utils.errors import BadData


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 30 small files, one hidden and one in a directory that tools create."""
    for number in range(30):
        file = tmp_path / f"{number % 3}" / f"{number:02}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"File {number}. " * (5 + number))
    (tmp_path / ".hidden").write_text("not text of the user")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/module.txt").write_text("not text of the user")
    return tmp_path


@pytest.fixture
def stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Text:
    """Return the task for a folder that is too large for memory."""
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    return Text(data=folder, window=16)


@pytest.mark.parametrize("window", [16, 1500], ids=["files for the test", "the last tenth for the test"])
def test_stored_text_has_the_windows_of_text_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    stored = Text(data=folder, window=window)
    corpus = text.read(folder, least=window + 1)
    train, test = Windows(corpus.train, window), Windows(corpus.test, window, most=text.MOST_TEST_WINDOWS)
    samples, tests = stored.train_samples(), stored.test_samples()

    assert not isinstance(samples, Windows), "the training windows are not in memory"
    assert len(samples) == len(train)
    assert len(tests) == len(test)
    for read, expected in ((samples, train), (tests, test)):
        for number in range(len(read)):
            assert all(map(torch.equal, read[number], expected[number]))


def test_a_block_of_windows_is_read_together(stored: Text) -> None:
    samples = stored.train_samples()
    assert not isinstance(samples, Windows)

    together = [samples.decode(record) for record in samples.read_block(3, 40)]

    assert all(torch.equal(together[at][0], samples[3 + at][0]) for at in range(40))


def test_the_digest_changes_with_a_size(stored: Text, folder: Path) -> None:
    before = stored.data_digest()
    (folder / "0/00.txt").write_text("shorter")

    assert Text(data=folder, window=16).data_digest() != before


def test_too_little_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    total = sum(file.size_bytes for file in open_storage(folder).list() if not file.key.startswith((".", "__")))

    with pytest.raises(BadData, match=f"has {total} bytes of text in 30 files"):
        Text(data=folder, window=total)


def test_a_file_that_was_cut_during_the_run_is_named(stored: Text, folder: Path) -> None:
    for file in folder.glob("*/*.txt"):
        file.write_text("cut")

    with pytest.raises(BadData, match="has 3 bytes, and had"):
        stored.train_samples()[0]
