"""Sources of the lint rules, as URLs."""

from __future__ import annotations

from typing import Final

ENV: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
TROUBLESHOOTING: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
TORCH_NCCL: Final = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
TORCH_DISTRIBUTED: Final = "https://docs.pytorch.org/docs/stable/distributed.html"
TORCH_CUDA: Final = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
FLIGHT_RECORDER: Final = "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"
NVRX: Final = "https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html#known-issues"
EFA: Final = "https://github.com/awslabs/awsome-distributed-ai (efa-cheatsheet)"


def env(name: str) -> str:
    """Return the URL of the variable's paragraph in NCCL's guide."""
    return f"{ENV}#{name.lower().replace('_', '-')}"


def issue(repository: str, number: int) -> str:
    """Return the URL of an issue on GitHub."""
    return f"https://github.com/{repository}/issues/{number}"
