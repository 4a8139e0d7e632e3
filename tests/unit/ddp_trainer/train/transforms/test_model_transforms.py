"""Memory format of images."""

from __future__ import annotations

import torch

from ddp_trainer.train.transforms.model_transforms import channels_last


def test_images_are_laid_out_as_convolutions_prefer() -> None:
    images, labels = channels_last((torch.ones(2, 3, 4, 4), torch.ones(2)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)
    assert channels_last({"a": [torch.ones(1, 2, 2, 2)]})["a"][0].is_contiguous(memory_format=torch.channels_last)
