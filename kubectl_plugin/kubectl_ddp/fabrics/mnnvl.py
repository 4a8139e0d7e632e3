"""NVLink between the machines of a rack: GB200 and GB300."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, Entry, Need, Profile
from kubectl_ddp.fabrics.plain import INTERFACES

CLIQUE: Final = "nvidia.com/gpu.clique"
"""Label that GPU Feature Discovery sets on machines of one NVLink partition."""
_SWITCHES_OFF: Final = "it switches off what joins the machines of the rack"

GB200: Final = Profile(
    name="gb200-mnnvl",
    summary="GB200 and GB300 racks: NVLink between machines, by a ComputeDomain; '+' another fabric between racks.",
    source=sources.DRA_DRIVER,
    entries=(
        Entry(
            key="computeDomain",
            value="0",
            reason="gives every pod a channel of the memory exchange (IMEX) between machines; 0 nodes, since the "
            "driver counts for itself and an elastic job has no fixed number",
            source=sources.DRA_DRIVER,
        ),
        Entry(
            key=f"nodeLabel.{CLIQUE}",
            value="exists",
            reason="only machines of an NVLink partition can join",
            source=sources.DRA_DRIVER,
        ),
        Entry(
            key="topology",
            value=f"pack={CLIQUE}:required",
            reason="NVLink is the only fabric named, and it ends at the rack",
            source=sources.DRA_DRIVER,
            alone=True,
        ),
        Entry(
            key="topology",
            value=f"pack={CLIQUE}",
            reason="NVLink is much faster than the fabric between racks",
            source=sources.DRA_DRIVER,
            alone=False,
        ),
        *INTERFACES,
    ),
    needs=(
        Need(
            message="The cluster must have NVIDIA's DRA driver for GPUs, 25.8 or newer, with its ComputeDomains.",
            source=sources.DRA_DRIVER,
        ),
    ),
    refusals=(
        ConflictingVariable(
            name="NCCL_CUMEM_ENABLE", value="0", reason=_SWITCHES_OFF, source=sources.env("NCCL_CUMEM_ENABLE")
        ),
        ConflictingVariable(
            name="NCCL_P2P_DISABLE", value="1", reason=_SWITCHES_OFF, source=sources.env("NCCL_P2P_DISABLE")
        ),
        ConflictingVariable(
            name="NCCL_MNNVL_ENABLE",
            value="1",
            reason="2, the default, finds out by itself; 1 ends in CUDA's error 800 where a channel is missing",
            source=sources.issue("NVIDIA/nccl", 1925),
        ),
    ),
    is_beside=True,
)

PROFILES: Final = (GB200,)
