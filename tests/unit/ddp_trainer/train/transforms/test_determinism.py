"""Deterministic algorithms without torch's compiler."""

from __future__ import annotations

import subprocess
import sys


def test_torch_still_lets_determinism_be_asked_for_without_its_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from ddp_trainer.train.transforms.model_transforms import be_deterministic\n"
        "be_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
