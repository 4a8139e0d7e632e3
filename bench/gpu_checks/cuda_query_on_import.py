"""A module that calls ``torch.cuda.is_available()`` when it is imported, as some libraries do."""

import torch

IS_THERE = torch.cuda.is_available()
