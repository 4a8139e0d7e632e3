"""Environment of a container on this machine: variables of its template, of the Kubeflow operator and of the kubelet.

The operator's variables are those of training-operator 1.9 for a PyTorchJob of workers
(``pkg/controller.v1/pytorch/{envvar,elastic}.go``). They follow the user's and therefore take precedence.

Each job leases a block 127.x.y.0/24 of the loopback network for its pods. The lease is the name of an abstract Unix
socket that the engine holds. The kernel keeps this name unique over all users of the network namespace, like the
addresses, and releases it when the engine ends for any reason.

This machine has neither DNS nor mounts for a job. In arguments and variables, the name of a Service or pod becomes its
address, and a mount path becomes the directory behind it. Only whole names and whole path components match:
``digits-store:29400`` is the Service, ``my-digits-store`` is not; ``/checkpoints/a`` is below the mount,
``/checkpoints2`` and ``/data/checkpoints`` are not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.constants import CONTAINER, Port, PortName
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.kube.objects import Object

WORKERS: Final = 253
"""Maximum number of workers of a local job: a block without its network, broadcast and store addresses."""

# Other programs use 127.0.x.y: localhost, a Debian host's own name (127.0.1.1), systemd-resolved (127.0.0.53).
_FIRST, _LAST = 16, 254


class Network:
    """Address block of one job, leased until :meth:`close`."""

    def __init__(self, prefix: str, lease: socket.socket) -> None:
        self.prefix = prefix
        self._lease = lease

    @classmethod
    def lease(cls, job: str) -> Network:
        """Lease a free block; a job gets the same block as before if it is still free."""
        for prefix in _blocks(job):
            lease = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lease.bind(f"\0kubectl-ddp/{prefix}")
            except OSError as error:
                lease.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return cls(prefix, lease)
        raise PreflightFailed("Every block of loopback addresses is taken by a job.", hint="Delete some of them.")

    @property
    def store(self) -> str:
        """Address of the rendezvous store."""
        return f"{self.prefix}.1"

    def worker(self, index: int) -> str:
        """Return the address of a worker; it stays the same over restarts."""
        return f"{self.prefix}.{index + 2}"

    def close(self) -> None:
        """Release the block."""
        self._lease.close()


def _blocks(job: str) -> Iterator[str]:
    count = (_LAST - _FIRST + 1) * 256
    start = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % count
    for offset in range(count):
        high, low = divmod((start + offset) % count, 256)
        yield f"127.{_FIRST + high}.{low}"


Translation = Callable[[str], str]


def translation(addresses: Mapping[str, str], directories: Mapping[str, str], namespace: str) -> Translation:
    """Return a function that translates one argument or value.

    Args:
        addresses: Name of a Service or pod → its address.
        directories: Mount path → directory on this machine.
        namespace: Namespace of the job; ``<service>.<namespace>.svc`` matches the Service too.
    """
    by_name = _names(addresses, namespace)
    by_path = _paths(directories)
    return lambda text: by_path(by_name(text))


def _names(addresses: Mapping[str, str], namespace: str) -> Translation:
    if not addresses:
        return str
    name = rf"({_any_of(addresses)})(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?"
    # In a URL, a path may follow the name; elsewhere a slash means that the word is a path.
    pattern = re.compile(rf"(?<=//){name}(?![\w\-]|\.\w)|(?<![\w.\-/]){name}(?![\w\-/]|\.\w)")
    return lambda text: pattern.sub(lambda found: addresses[found[1] or found[2]], text)


def _paths(directories: Mapping[str, str]) -> Translation:
    if not directories:
        return str
    pattern = re.compile(rf"(?<![\w.\-/~])({_any_of(directories)})(?![\w.\-])")
    return lambda text: pattern.sub(lambda found: directories[found[1]], text)


def _any_of(words: Mapping[str, str]) -> str:
    """Return a regex of alternatives, longest first, so that ``/data/a`` matches before ``/data``."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


Variable = dict[str, Any]
"""One entry of a container's ``env``."""

_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_BRACKETED: Final = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")

_OUTER_JOB: Final = re.compile(
    r"^(RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|ROLE_NAME|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_WORLD_SIZE"
    r"|ROLE_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_.*|TORCHELASTIC_.*|DDP_.*|KUBECTL_DDP_.*)$"
)


def of_shell(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a pod inherits from the caller: all except those of an outer job or launcher."""
    return {name: value for name, value in environ.items() if not _OUTER_JOB.match(name)}


def of_operator(job: Object) -> list[Variable]:
    """Return the variables that the operator adds to every container of every worker."""
    spec = job["spec"]
    nproc = spec.get("nprocPerNode", "auto")
    variables = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": str(nproc)}
    elastic = spec.get("elasticPolicy")
    variables |= _elastic(job, elastic) if elastic is not None else {"PET_NNODES": str(worker_replicas(job))}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _elastic(job: Object, policy: Mapping[str, Any]) -> dict[str, str]:
    low, high = elastic_bounds(job)
    host = policy.get("rdzvHost") or f"{job['metadata']['name']}-worker-0"
    variables = {
        "PET_RDZV_ENDPOINT": f"{host}:{policy.get('rdzvPort') or _operator_port(job)}",
        "PET_RDZV_BACKEND": str(policy.get("rdzvBackend") or "c10d"),
        "PET_NNODES": f"{low}:{high}",
    }
    optional = {
        "PET_MAX_RESTARTS": policy.get("maxRestarts"),
        "PET_RDZV_ID": policy.get("rdzvId"),
        "PET_RDZV_CONF": ",".join(f"{item['key']}={item['value']}" for item in policy.get("rdzvConf") or ()) or None,
    }
    variables |= {name: str(value) for name, value in optional.items() if value is not None}
    # The real operator also sets it to an empty value, and torchrun then fails in argparse: better to see it here.
    return variables | ({"PET_STANDALONE": ""} if policy.get("standalone") else {})


def worker_replicas(job: Object) -> int:
    """Return the desired number of worker pods."""
    return int(job["spec"]["pytorchReplicaSpecs"]["Worker"].get("replicas", 1))


def elastic_bounds(job: Object) -> tuple[int, int]:
    """Return the minimum and maximum number of workers; both are the current number if the job is not elastic."""
    policy = job["spec"].get("elasticPolicy") or {}
    low, high = policy.get("minReplicas"), policy.get("maxReplicas")
    if low is None and high is None:
        return worker_replicas(job), worker_replicas(job)
    return int(low if low is not None else high or 0), int(high if high is not None else low or 0)


def _operator_port(job: Object) -> int:
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    for container in template["spec"]["containers"]:
        for port in container.get("ports") or ():
            if container.get("name") == CONTAINER and port.get("name") == PortName.OPERATOR:
                return int(port["containerPort"])
    return int(Port.OPERATOR)


def resolve(
    variables: Iterable[Variable], pod: Object, *, inherited: Mapping[str, str], adapt: Callable[[str], str]
) -> dict[str, str]:
    """Return the values of a container's ``env`` list by the kubelet's rules; the last entry of a name wins.

    Args:
        variables: Entries with ``value`` or ``valueFrom``.
        pod: Pod, for the downward API.
        inherited: Values used in place of Secrets and ConfigMaps, which this machine lacks.
        adapt: Function that translates addresses and directories in literal values to this machine.
    """
    known: dict[str, str] = {}
    for variable in variables:
        name = variable["name"]
        if "valueFrom" in variable:
            value = _from_source(name, variable["valueFrom"], pod, inherited)
        else:
            value = expand(adapt(str(variable.get("value", ""))), known)
        if value is not None:
            known[name] = value
    return known


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as the kubelet does: unknown names are kept, and ``$$`` becomes ``$``.

    >>> expand("$(HOST):$(PORT) $$(HOST)", {"HOST": "a"})
    'a:$(PORT) $(HOST)'
    """
    return _REFERENCE.sub(lambda found: known.get(found[1], found[0]) if found[1] else "$", text)


def _from_source(name: str, source: Mapping[str, Any], pod: Object, inherited: Mapping[str, str]) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(source["resourceFieldRef"]["resource"])
    kind, reference = next(iter(source.items()))
    if name in inherited:
        return inherited[name]
    if reference.get("optional"):
        return None
    what = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}.get(kind, kind)
    raise PreflightFailed(
        f"Variable {name} comes from the {what} '{reference.get('name', '')}', which this machine has not.",
        hint=f"Export {name} in your shell; a local job takes it from there.",
    )


def field(pod: Object, path: str) -> str:
    """Return a field of a pod by its downward API path.

    Raises:
        PreflightFailed: If the field does not exist.
    """
    bracketed = _BRACKETED.match(path)
    if bracketed:
        return str((pod["metadata"].get(bracketed[1]) or {}).get(bracketed[2], ""))
    address = pod["status"].get("podIP", "")
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"].get("namespace", "default"),
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": "127.0.0.1",
        "status.hostIPs": "127.0.0.1",
    }
    if path not in fields:
        raise PreflightFailed(
            f"The downward API has no field '{path}'.", hint=f"It has {', '.join(sorted(fields))}, labels, annotations."
        )
    return str(fields[path])


def _resource(resource: str) -> str:
    """Return the machine's total amount as the limit, since the engine sets no limits."""
    quantity = resource.split(".", 1)[-1]
    amounts = {
        "cpu": lambda: os.cpu_count() or 1,
        "memory": lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    return str(amounts.get(quantity, lambda: 0)())
