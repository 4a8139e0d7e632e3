"""Fields that a fabric adds to the objects and that no job key sets. None of them needs a privilege."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from ddp_trainer.common.constants import Exit
from kubectl_ddp.fabrics.catalog import Target
from kubectl_ddp.render import runtime
from kubectl_ddp.render.pod import literal
from kubectl_ddp.spec.fabric import object_entries
from kubectl_ddp.spec.model import JobSpec

MULTUS: Final = "k8s.v1.cni.cncf.io/networks"
CHANNEL: Final = "channel"
"""Name of the claim for a channel of a ComputeDomain."""
TEMPLATES: Final = {
    Target.COMPUTE_DOMAIN: "compute-domain.yaml.j2",
    Target.CLAIM: "resource-claim-template.yaml.j2",
}


def view(spec: JobSpec, *, is_local: bool) -> dict[str, Any]:
    """Return the fabric's values for the templates; empty for this machine, which has no such network."""
    added = {} if is_local else {target: _of(spec, target) for target in Target}
    claims = [*added.get(Target.CLAIM, ()), *([CHANNEL] if added.get(Target.COMPUTE_DOMAIN) else ())]
    load = list(added.get(Target.LOAD, {}).values())
    libraries = list(added.get(Target.LIBRARY_PATH, {}).values())
    launch = runtime.command(spec, runtime.LAUNCH, is_local=is_local)
    return {
        "fabric_annotations": {} if is_local else added[Target.ANNOTATION] | _network_annotations(spec),
        "fabric_resources": added.get(Target.RESOURCE, {}),
        "node_labels": list(added.get(Target.NODE_LABEL, {})),
        "claims": {name: f"{spec.name}-{name}" for name in claims},
        "compute_domain_nodes": next(
            (int(nodes) + spec.spares for nodes in added.get(Target.COMPUTE_DOMAIN, {}).values()), None
        ),
        "devices": [_devices(value) for value in added.get(Target.CLAIM, {}).values()],
        "fabric_templates": [TEMPLATES[target] for target in TEMPLATES if added.get(target)],
        "launch_command": [*_shell(spec, load, libraries), *launch] if load or libraries else launch,
    }


def _of(spec: JobSpec, target: Target) -> dict[str, str]:
    """Return the additions of one kind, value by name."""
    return {entry.name: entry.value for entry in object_entries(spec) if entry.target == target}


def _network_annotations(spec: JobSpec) -> dict[str, str]:
    return {MULTUS: ",".join(spec.networks)} if spec.networks else {}


def _devices(value: str) -> dict[str, Any]:
    device_class, _, count = value.partition("=")
    amount = {"allocationMode": "All"} if count == "all" else {"allocationMode": "ExactCount", "count": int(count)}
    return {"deviceClassName": device_class, **amount}


def _shell(spec: JobSpec, load: Sequence[str], libraries: Sequence[str]) -> list[str]:
    """Return a shell that sources the vendor's scripts and starts what follows. The job's values take precedence."""
    lines = [_before_the_rest("LD_LIBRARY_PATH", libraries)] if libraries else []
    if load:
        said = sorted(name for name in (*spec.env, *spec.secret_env) if name.startswith("NCCL_"))
        lines.append(f'kept="$(declare -p {" ".join(said)})"' if said else "kept=")
        lines += [source_script(path) for path in load]
        lines.append('eval "$kept"')
    return ["bash", "-c", literal("\n".join([*lines, 'exec "$@"'])), runtime.LAUNCHER]


def _before_the_rest(name: str, directories: Sequence[str]) -> str:
    return f'export {name}={":".join(directories)}"${{{name}:+:${name}}}"'


def source_script(path: str) -> str:
    """Return shell lines that source a vendor's script, or fail if it is missing."""
    missing = f"{path} is not there: the machine, its image or its cluster has not set up this network."
    return f"[[ -r {path} ]] || {{ echo {shlex.quote(missing)} >&2; exit {Exit.DO_NOT_RESTART:d}; }}\nsource {path}"
