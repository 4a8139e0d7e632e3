"""Selection of a rank's device (:func:`choose_device`) and of its number of CPU threads (:func:`limit_threads`)."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from ddp_trainer.common.gpu_faults import FaultKind, cause_line, fault_in
from ddp_trainer.process.gpu_devices import DEVICES, MIG_PREFIX, VISIBLE, visible_gpus
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import DeviceName, Level
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig, GpuFailed


class Driver:
    """CUDA, accessed through torch."""

    cuda: str = torch.version.cuda or torch.version.hip or ""
    """CUDA or HIP version of the torch build; empty for a CPU build."""

    def count(self) -> int:
        """Return the number of GPUs that CUDA can use in this process."""
        with warnings.catch_warnings(action="ignore"):  # the error message contains the text of the warning
            return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def take(self, index: int) -> None:
        """Make the GPU of this index the current device. Raises RuntimeError if it fails."""
        torch.cuda.set_device(index)

    def init_error(self) -> str:
        """Return CUDA's error message if CUDA cannot be initialized, else an empty string."""
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call] # torch has no types here
        except (RuntimeError, AssertionError) as err:
            return str(err)
        return ""


def choose_device(
    requested: DeviceName, env: Environment, driver: Driver | None = None, devices: Path = DEVICES
) -> torch.device:
    """Return the GPU of this local rank, or the CPU if no GPU is requested or assigned.

    Args:
        requested: Value of ``--device``.
        env: Place of the process. Its local rank is the index of its GPU.
        driver: Interface to CUDA (:class:`Driver`).
        devices: Directory of the device files.

    Raises:
        BadConfig: ``--device cuda`` without CUDA or GPU, or more ranks than GPUs or usable MIG slices.
        GpuFailed: An assigned GPU cannot be used.
    """
    driver = driver or Driver()
    if requested is DeviceName.CPU or (requested is DeviceName.AUTO and not driver.cuda):
        return torch.device("cpu")
    if not driver.cuda:
        raise BadConfig(
            f"--device is cuda, and torch {torch.__version__} was built without CUDA.",
            hint="Use an image whose torch has CUDA, or give --device cpu.",
        )
    if env.local_rank < driver.count():
        return _set_cuda_device(env, driver)
    visible = visible_gpus(env.visible_devices, devices)
    if requested is DeviceName.AUTO and not visible and not driver.count():
        return torch.device("cpu")
    raise _without_gpu(env, driver, visible)


def _set_cuda_device(env: Environment, driver: Driver) -> torch.device:
    try:
        driver.take(env.local_rank)
    except RuntimeError as err:
        raise _failed(env, driver, f"cannot use GPU {env.local_rank}", str(err)) from err
    return torch.device("cuda", env.local_rank)


def _without_gpu(env: Environment, driver: Driver, visible: tuple[str, ...]) -> BadConfig | GpuFailed:
    count, ranks = driver.count(), f"{env.local_world_size} rank{'s' * (env.local_world_size > 1)}"
    if count and visible and all(name.startswith(MIG_PREFIX) for name in visible):
        return BadConfig(
            f"The {ranks} on {env.host} share {len(visible)} MIG slices, of which CUDA shows a process one.",
            hint="Add --virtual-local-rank to ddp-launch: each worker then gets the UUID of one slice.",
        )
    if env.local_rank < len(visible):
        words = driver.init_error() or f"CUDA reports {count}, and no reason"
        return _failed(env, driver, f"finds {count} of {len(visible)} GPUs", words)
    there = max(count, len(visible))
    has = f"has {there} GPU{'s' * (there > 1)}" if there else "has no GPU"
    named = f" ({VISIBLE}={env.visible_devices[VISIBLE]!r})" if VISIBLE in env.visible_devices else ""
    return BadConfig(
        f"Rank {env.rank} has no GPU: {env.host} {has}{named} for {ranks}.",
        hint="Start at most one rank per GPU (--nproc-per-node gpu), or give --device cpu.",
    )


def _failed(env: Environment, driver: Driver, what: str, words: str) -> GpuFailed:
    fault = fault_in(words) or fault_in("CUDA error: invalid device ordinal")
    fix = fault.fix if fault else ""
    if fault and fault.kind is FaultKind.DRIVER:
        what += f" (torch {torch.__version__} is built for CUDA {driver.cuda})"
    return GpuFailed(f"Rank {env.rank} on {env.host} {what}: {cause_line(words)}.", hint=f"Fix: {fix}.")


def limit_threads(env: Environment, config: Config | None = None) -> None:
    """Set the number of torch's CPU threads, so that the local ranks share the cores.

    By default torch uses all cores in every rank, and the ranks slow each other down. A value of ``--threads`` has
    priority. ``--level exact`` uses one thread, because the rounding of sums depends on the number of threads.
    """
    threads = None if config is None else config.threads
    if threads is None and config is not None and config.level is Level.EXACT:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    elif env.local_world_size > 1 and not env.threads_chosen:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // env.local_world_size))
