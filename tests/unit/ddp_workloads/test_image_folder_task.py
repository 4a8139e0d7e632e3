"""The task ``image-folder``: listing, decoding, and random draws per sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.data.loaders.base import Request
from ddp_trainer.train.data.loaders.map_reader import SliceReader
from ddp_trainer.train.utils.errors import BadData, BadSample
from ddp_workloads.image_folder import ImageFolder, Images, list_splits, random_cut

CPU = torch.device("cpu")


def a_class(path: Path, colour: tuple[int, int, int], count: int, suffix: str = ".png") -> None:
    path.mkdir(parents=True)
    for number in range(count):
        picture = Image.new("RGB", (48, 40), colour)
        for x in range(48):
            picture.putpixel((x, (x + number) % 40), (255, 255, 255))
        picture.save(path / f"{number:02}{suffix}")


def a_folder(path: Path, count: int = 10) -> Path:
    a_class(path / "cats", (200, 0, 0), count)
    a_class(path / "dogs", (0, 0, 200), count, ".jpg")
    return path


def test_a_tenth_of_each_class_is_for_the_test(tmp_path: Path) -> None:
    classes, train, test = list_splits(a_folder(tmp_path, 20))
    assert classes == ["cats", "dogs"]
    assert (len(train), len(test)) == (36, 4)
    assert sorted(label for _, label in test) == [0, 0, 1, 1]
    assert not {file for file, _ in train} & {file for file, _ in test}
    assert list_splits(tmp_path) == (classes, train, test)


@pytest.mark.parametrize("other", ["test", "val"])
def test_folders_of_both_sides_are_taken_as_they_are(other: str, tmp_path: Path) -> None:
    a_folder(tmp_path / "train", 3)
    a_folder(tmp_path / other, 2)
    _, train, test = list_splits(tmp_path)
    assert (len(train), len(test)) == (6, 4)
    assert all(other in file.parts for file, _ in test)


def test_an_image_becomes_channels_between_minus_one_and_one(tmp_path: Path) -> None:
    task = ImageFolder(data=a_folder(tmp_path), image_size=16)
    image, label = task.test_samples()[0]
    assert (image.shape, image.dtype, int(label)) == ((3, 16, 16), torch.float32, 0)
    assert -1 <= float(image.min()) < 0 < float(image.max()) <= 1
    assert float(image[0].mean()) > float(image[2].mean())
    assert task.model()(image.unsqueeze(0)).shape == (1, 2)


def drawn(task: ImageFolder, seed: int, epoch: int, ids: list[int]) -> torch.Tensor:
    reader = SliceReader(task.train_samples(), KeyedRng(seed, CPU), skips=False)
    return reader.read(Request(step=3, epoch=epoch, slice_index=0, ids=torch.tensor(ids))).batch[0]


def test_an_image_is_drawn_the_same_beside_any_others_and_differently_in_the_next_epoch(tmp_path: Path) -> None:
    task = ImageFolder(data=a_folder(tmp_path), image_size=16)
    image = drawn(task, 1, 0, [4])[0]
    random.seed(99)
    assert torch.equal(drawn(task, 1, 0, [2, 4, 5])[1], image)
    assert not torch.equal(drawn(task, 1, 1, [4])[0], image)
    assert not torch.equal(drawn(task, 2, 0, [4])[0], image)
    assert torch.equal(task.test_samples()[1][0], task.test_samples()[1][0])


def test_a_random_cut_stays_in_the_image_and_keeps_a_quarter() -> None:
    for seed in range(200):
        random.seed(seed)
        left, top, right, bottom = random_cut(100, 30)
        assert 0 <= left < right <= 100.001
        assert 0 <= top < bottom <= 30.001


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(path.read_bytes()[:60]), lambda path: path.write_text("no image"), Path.unlink],
    ids=["torn", "text", "gone"],
)
def test_an_image_that_cannot_be_read_is_named(damage: Callable[[Path], object], tmp_path: Path) -> None:
    file = a_folder(tmp_path) / "cats" / "00.png"
    images = Images([(file, 0)], 16, augment=True)
    assert len(images) == 1
    damage(file)
    with pytest.raises(BadSample) as info:
        images[0]
    assert str(info.value).startswith(f"The image {file} cannot be read: ")
    assert len(str(info.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        ([], "data does not exist. Give --data a folder with one folder per class."),
        (["."], "has no classes. Give it one folder per class, two or more."),
        (["cats"], "has one class only, 'cats'."),
        (["cats", "dogs", "fish/empty"], "The class 'fish' in "),
        (["train/cats", "train/dogs", "test/cats"], "The class 'dogs' is missing in "),
        (["train/cats", "train/cows", "test/cats", "test/dogs"], "The class 'cows' is missing in "),
    ],
)
def test_a_folder_that_lacks_something_is_refused(classes: list[str], sentence: str, tmp_path: Path) -> None:
    for name in classes:
        if name in {".", "fish/empty"}:
            (tmp_path / "data" / name).mkdir(parents=True)
        else:
            a_class(tmp_path / "data" / name, (9, 9, 9), 1)
    with pytest.raises(BadData) as info:
        ImageFolder(data=tmp_path / "data")
    assert sentence in str(info.value)
    assert info.value.exit_code == 2


def test_other_files_are_other_data(tmp_path: Path) -> None:
    before = ImageFolder(data=a_folder(tmp_path)).data_digest()
    assert ImageFolder(data=tmp_path).data_digest() == before
    (tmp_path / "cats" / "00.png").rename(tmp_path / "cats" / "0.png")
    assert ImageFolder(data=tmp_path).data_digest() != before
