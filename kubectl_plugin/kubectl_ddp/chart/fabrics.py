"""``files/fabrics.yaml``: rules that select the fabric of a job, and the settings of each fabric."""

from __future__ import annotations

import re
from typing import Any

from kubectl_ddp.fabrics import choose
from kubectl_ddp.fabrics.model import SET, ConflictingVariable, Entry, Need, Profile, Target
from kubectl_ddp.fabrics.registry import FABRICS
from kubectl_ddp.fabrics.version import version
from kubectl_ddp.render.fabric import source_script
from kubectl_ddp.spec import fabric


def fabric_values() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "choose": {
            "machine": fabric.MACHINE,
            "accelerator": fabric.ACCELERATOR,
            "machines": _patterns(choose.MACHINES),
            "accelerators": dict(choose.ACCELERATORS),
            "devices": _patterns(choose.DEVICES),
            "wholeMachines": sorted(choose.WHOLE_MACHINES),
            "racks": choose.RACKS,
            "rackProducts": list(choose.RACK_PRODUCTS),
        },
        "targets": [str(target) for target in Target],
        "profiles": {name: _profile(profile) for name, profile in FABRICS.items()},
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "hasGpus": profile.has_gpus,
        "isBeside": profile.is_beside,
        "largest": profile.largest or 0,
        "devices": list(profile.devices),
        "askFor": fabric.rdma_hint(profile) if profile.devices else "",
        "entries": [_entry(entry) for entry in profile.entries if entry.emission in SET],
        "needs": [_need(need) for need in profile.needs],
        "refusals": [_conflicting_variable(refusal) for refusal in profile.refusals],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {"key": entry.key, "target": entry.target, "name": entry.name, "value": entry.value}
    made["reason"] = entry.reason
    if entry.key in fabric.LISTS:
        made["value"] = entry.value.split(",")
    if entry.target == Target.LOAD:
        made["value"] = source_script(entry.value)
    bounds = {"since": entry.since, "before": entry.before}
    made |= {word: list(version(bound)) for word, bound in bounds.items() if bound}
    made |= {"machines": [pattern(machine) for machine in entry.machines]} if entry.machines else {}
    return made | ({"alone": entry.alone} if entry.alone is not None else {})


def _need(need: Need) -> dict[str, Any]:
    return {"sentence": need.message, "source": need.source, "isGrave": need.is_grave, "unless": need.unless}


def _conflicting_variable(refusal: ConflictingVariable) -> dict[str, str]:
    value = {"value": pattern(refusal.value)} if refusal.value != "*" else {}
    return {"name": pattern(refusal.name), **value, "reason": refusal.reason}


def _patterns(choices: Any) -> list[dict[str, str]]:
    return [{"pattern": pattern(shell), "fabric": name} for shell, name in choices]


def pattern(shell: str) -> str:
    r"""Convert a shell pattern with ``*``, ``?`` and ``[...]`` of plain letters to Go's regular expression syntax.

    >>> pattern("BM.GPU.[HB]?.*")
    '^BM\\.GPU\\.[HB].\\..*$'
    """
    parts = re.split(r"(\*|\?|\[[^]!]+\])", shell)
    plain = {"*": ".*", "?": "."}
    return f"^{''.join(plain.get(part, part if part.startswith('[') else re.escape(part)) for part in parts)}$"
