"""Environment of a worker: torchrun's variables and the launcher's own.

:func:`common_environment` builds the part that all workers share. :func:`place_in` and :func:`prepared_environment`
build the part of one worker.

:func:`slices_for` assigns MIG slices to workers, because CUDA shows each process only one slice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.failures import CHARGED
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.process.gpu_devices import DEVICES, MIG_PREFIX, VISIBLE, has_mig_slices, list_gpu_uuids


def slices_for(
    workers: int, environ: Mapping[str, str], *, one_each: bool, devices: Path = DEVICES
) -> tuple[tuple[str, ...], str]:
    """Return the UUID of a MIG slice for each worker, and a warning.

    Args:
        workers: Number of workers on this node.
        environ: Environment of the launcher.
        one_each: Whether each worker sees one GPU.
        devices: Folder of the device files.

    Returns:
        UUIDs of slices, and a sentence. The UUIDs are empty if the node has none or ``CUDA_VISIBLE_DEVICES`` names
        devices. The sentence is empty unless workers would share a slice.

    Raises:
        LaunchError: If slices are named by index, which CUDA takes as GPU indices.
    """
    if not has_mig_slices(devices):
        return (), ""
    uuids = list_gpu_uuids(environ)
    if not uuids or not all(uuid.startswith(MIG_PREFIX) for uuid in uuids):
        return (), ""
    named = environ.get(VISIBLE)
    if named is not None and _names_by_index(named, workers):
        raise LaunchError(
            f"{VISIBLE}={named} names MIG slices by index, and CUDA shows the first slice of the first GPU alone; "
            "unset it and give --virtual-local-rank, or name slices by the UUIDs of 'nvidia-smi -L'."
        )
    if workers > 1 and not one_each:
        return (), (
            f"{workers} workers on a node of {len(uuids)} MIG slices: CUDA shows each of them the same one; "
            "--virtual-local-rank gives each worker its own slice."
        )
    return (uuids if named is None else ()), ""


def _names_by_index(named: str, workers: int) -> bool:
    entries = [entry.strip() for entry in named.split(",")]
    return any(entry.isdecimal() for entry in entries) and (workers > 1 or entries != ["0"])


HUGE_PAGES: Final = "THP_MEM_ALLOC_ENABLE"
"""Variable of torch: tensors of 2 MiB and more in huge pages. A replaced worker fills its model in about half the time,
and the kernel frees that of the lost one faster."""
_SIGNALS: Final = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""torchrun's variable, which its workers inherit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings that all workers of this pod share."""

    run_id: str
    local_world_size: int
    max_restarts: int
    nodes: str = ""
    """``MIN:MAX`` of the run; empty if unknown."""
    role: str = "default"
    virtual_local_rank: bool = False
    """If true, LOCAL_RANK is 0 for every worker, and each worker sees one GPU."""
    slices: tuple[str, ...] = ()
    """UUIDs of the node's MIG slices, which replace GPU indices; empty for whole GPUs."""
    on_hang: str = ""
    """Reaction to a hanging rank, as ``--on-hang``."""
    signals: str = ""
    """Names of the signals that end the run, as ``--signals-to-handle``."""
    cpus: tuple[frozenset[int], ...] = ()
    """Processors of each worker; if empty, each may use all that the launcher may use."""


def place_in(
    base: Mapping[str, str], launch: Launch, generation: Assignment, local_rank: int, error_file: str
) -> dict[str, str]:
    """Return the variables that define a worker's place in the generation.

    Args:
        base: The other variables of the worker.
        launch: Settings of this pod.
        generation: Place of this node in the generation.
        local_rank: Local rank of the worker.
        error_file: Path for the worker's error file.
    """
    own = {
        "RANK": str(generation.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(generation.world_size),
        "LOCAL_WORLD_SIZE": str(launch.local_world_size),
        "GROUP_RANK": str(generation.node_rank),
        "GROUP_WORLD_SIZE": str(generation.node_count),
        "ROLE_NAME": launch.role,
        "ROLE_RANK": str(generation.role_first_rank + local_rank),
        "ROLE_WORLD_SIZE": str(generation.role_world_size),
        "MASTER_ADDR": generation.master_address,
        "MASTER_PORT": str(generation.master_port),
        "TORCHELASTIC_RUN_ID": launch.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(sum(generation.restarts.get(cause, 0) for cause in CHARGED)),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        # Rank 0 hosts the store of the ranks itself, at a port that no earlier attempt has used. A store that
        # outlives an attempt would return the addresses of dead ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        Env.GENERATION: str(generation.number),
        Env.FENCE: str(generation.fence),
        Env.RESTARTS: json.dumps(generation.restarts, sort_keys=True),
    }
    if launch.virtual_local_rank:
        own |= _one_gpu(base, launch, local_rank)
    return {str(name): value for name, value in own.items()}


def prepared_environment(base: Mapping[str, str], launch: Launch, local_rank: int) -> dict[str, str]:
    """Return the environment of a worker that has no generation yet. It recognizes this by the missing ``RANK``."""
    own = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(launch.local_world_size)}
    if launch.virtual_local_rank:
        own |= _one_gpu(base, launch, local_rank)
    return {**base, **own}


def common_environment(base: Mapping[str, str], launch: Launch) -> dict[str, str]:
    """Return the variables that all workers share.

    Args:
        base: Environment of the launcher. Its ``PET_`` variables are flags of this launcher. A launcher that the script
            starts would take them for its own, and meet the ranks of this run.
        launch: Settings of this pod.
    """
    defaults = {str(Env.SHARE_STORE_OFF): "1", HUGE_PAGES: "1"}
    if launch.local_world_size > 1:
        defaults["OMP_NUM_THREADS"] = "1"  # else every worker starts a thread per core; torchrun does the same
    shared = {str(Env.NODES): launch.nodes, str(Env.ON_HANG): launch.on_hang, _SIGNALS: launch.signals}
    inherited = {name: value for name, value in base.items() if not name.startswith("PET_")}
    return {**defaults, **inherited, **{name: value for name, value in shared.items() if value}}


def _one_gpu(base: Mapping[str, str], launch: Launch, place: int) -> dict[str, str]:
    visible = base.get(VISIBLE)
    if visible is None and not launch.slices:
        return {"LOCAL_RANK": "0", VISIBLE: str(place)}
    devices = launch.slices if visible is None else [device.strip() for device in visible.split(",") if device.strip()]
    if place >= len(devices):
        has = f"{VISIBLE}={visible} has" if visible is not None else "the MIG slices of this node are"
        raise LaunchError(
            f"Each worker needs a separate GPU, but {has} {len(devices)}; start fewer workers, or leave "
            "--virtual-local-rank out."
        )
    return {"LOCAL_RANK": "0", VISIBLE: devices[place]}
