"""Selection of a rank's device, of its CPU threads and of the collective backend.

:func:`choose_device`, :func:`limit_threads` and :func:`choose_backend` are the entry points.
:func:`require_same_device` checks that all ranks of a group use the same kind of device and backend.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from ddp_trainer.common.gpu_faults import FaultKind, cause_line, fault_in
from ddp_trainer.process.gpu_devices import DEVICES, MIG_PREFIX, VISIBLE, visible_gpus
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import BackendName, DeviceName, Level
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.stream_abort import STREAMS
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


def choose_backend(requested: BackendName, device: torch.device) -> str:
    """Return the name of the backend for collectives on tensors of a device.

    Args:
        requested: The backend of ``--backend``; AUTO selects NCCL for GPUs and gloo for CPUs.
        device: The device of this rank.

    Raises:
        BadConfig: This build of torch lacks the backend, or the backend does not support the device.
    """
    if requested is BackendName.AUTO:
        return "nccl" if device.type == "cuda" else "gloo"
    if requested is BackendName.MPI and not dist.is_mpi_available():
        raise BadConfig(
            f"--backend is mpi, and torch {torch.__version__} was built without MPI, as its published builds are.",
            hint="Give --backend gloo or nccl, or install a torch that was built from source where MPI is.",
        )
    if requested is BackendName.NCCL and (device.type != "cuda" or not dist.is_nccl_available()):
        raise BadConfig(
            f"--backend is nccl, which carries tensors of NVIDIA GPUs alone, and this rank computes on {device.type}.",
            hint="Give --backend gloo, or start at most one rank per GPU.",
        )
    return requested.value


def backend_of_group(backend: str, *, offloads: bool) -> str:
    """Return the backend argument of ``init_process_group``.

    Args:
        backend: The result of :func:`choose_backend`.
        offloads: True if FSDP2 keeps weights and gradients of a GPU rank in CPU memory. NCCL does not support these, so
            the group also gets gloo. GPU tensors, and the rules for leaving the group, stay with NCCL.

    Source: torchtitan's ``init_distributed``, which adds ``cpu:gloo`` for CPU offload.
    """
    return f"cpu:gloo,cuda:{backend}" if offloads and backend in STREAMS else backend


def is_nccl2(backend: str) -> bool:
    """Return whether torch implements a backend by nccl2, its second NCCL backend, which has other variables.

    torch's registry decides. The version alone does not: ``TORCH_DIST_USE_NCCL2`` changes the meaning of ``nccl``.
    torch 2.14 and newer enter a backend when the first group needs it, so it is entered here. Before torch 2.14 the
    registry has no NCCL backend.

    Args:
        backend: Name of a backend, for example ``nccl``, ``nccl-legacy``, ``nccl2`` or ``nccl-lazy``, a form of nccl2.
    """
    enter = getattr(dist.Backend, "_ensure_backend_registered", None)
    if enter is not None:
        enter(backend)
    plugin = dist.Backend._plugins.get(backend.upper())  # noqa: SLF001 - torch has no public way
    name = "" if plugin is None else getattr(plugin.creator_fn, "__name__", "")
    return "nccl2" in name or "nccl_lazy" in name


_KEY: Final = "device"


def require_same_device(
    store: dist.Store,  # type: ignore[name-defined] # documented, but not in __all__
    prefix: str,
    rank: int,
    device: torch.device,
    backend: str,
) -> None:
    """Compare the device and backend of this rank with those of the first rank that joined.

    It costs one request to the store.

    Args:
        store: The store of the group.
        prefix: Prefix of all keys of this group.
        rank: Rank of this process.
        device: Device of this rank.
        backend: Backend of its collectives.

    Raises:
        BadConfig: The first rank has another kind of device or another backend.
    """
    own = f"{device.type} with {backend}"
    answer = bytes(store.compare_set(f"{prefix}/{_KEY}", "", f"{rank}:{own}")).decode()
    first, _, of_first = answer.partition(":")
    if of_first != own:
        raise BadConfig(
            f"Rank {rank} computes on {own}, and rank {first} on {of_first}: ranks of one group need one kind of "
            "device and one backend.",
            hint="Give GPUs to all pods or to none, and all ranks the same --device and --backend.",
        )
