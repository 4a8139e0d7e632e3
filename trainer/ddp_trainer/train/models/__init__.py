"""Models by name, for ``--model``: the ones of a first tutorial, ResNets and a GPT of any size.

``gpt:layers=6,width=256`` is a name and options. Options are the keyword parameters of the model's factory; those
that follow from the data (classes, window, …) are facts that the task gives and nobody has to type.
"""

from __future__ import annotations

from ddp_trainer.train.models.choice import MODELS, build, flops, tokens

__all__ = ["MODELS", "build", "flops", "tokens"]
