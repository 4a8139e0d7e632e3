"""Precision fp16 where a processor has it, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import torch


def test_torch_still_answers_whether_a_processor_has_fp16() -> None:
    # Without it, fp16 is tried wherever it is asked for.
    assert isinstance(torch.ops.mkldnn._is_mkldnn_fp16_supported(), bool)


def test_neither_options_nor_fp16_import_the_compiler() -> None:
    program = (
        "import sys\n"
        "from ddp_trainer.train.transforms import precision\n"
        "from ddp_trainer.train.cli import main\n"
        "precision._cpu_has_fp16 = lambda: True\n"
        "flags = ['--precision', 'fp16', '--activation-checkpointing', '--channels-last', '--deterministic']\n"
        "assert main(['--max-steps', '2', '--clip-norm', '1', '--gc-steps', '1', *flags]) == 0\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
