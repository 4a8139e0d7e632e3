"""Assignment of MIG slices to workers. CUDA shows each process only one slice.

The entry point is :func:`slices_for`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddp_trainer.launch.protocol.errors import LaunchError
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
