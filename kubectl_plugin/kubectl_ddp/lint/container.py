"""Container model of the lint rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.lint.accessors import mapping, mappings, number, scalar_list, string_mapping

_GPU: Final = re.compile(r"(nvidia|amd)\.com/(gpu|mig-.+)")
_RDMA: Final = re.compile(r"rdma/.+|.+/(efa|roce.*|hostdev|(shared_)?ib|(.*[-_])?rdma([-_].*)?|(.*[-_])?hca([-_].*)?)")
"""Pattern of device plugins' resource names for RDMA: ``rdma/ib``, ``vpc.amazonaws.com/efa``, ``nvidia.com/rdma-vf``
and others.
"""


def is_rdma(resource: str) -> bool:
    """Return True if a resource is an RDMA device.

    >>> [is_rdma(name) for name in ("rdma/ib", "nvidia.com/rdma-vf", "vpc.amazonaws.com/efa", "nvidia.com/gpu", "cpu")]
    [True, True, True, False, False]
    """
    return _RDMA.fullmatch(resource) is not None


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod."""

    document: Mapping[str, object]

    @property
    def name(self) -> str:
        """Name of the container; ``?`` if missing."""
        return str(self.document.get("name", "?"))

    @property
    def limits(self) -> dict[str, str]:
        """Resource limits by resource name."""
        return string_mapping(mapping(self.document.get("resources")).get("limits"))

    @property
    def requests(self) -> dict[str, str]:
        """Resource requests by resource name."""
        return string_mapping(mapping(self.document.get("resources")).get("requests"))

    @property
    def gpus(self) -> int:
        """Number of GPUs or MIG slices."""
        return sum(number(count) for name, count in self._devices.items() if _GPU.fullmatch(name))

    @property
    def rdma(self) -> dict[str, int]:
        """Number of RDMA devices by resource name."""
        return {name: number(count) for name, count in self._devices.items() if is_rdma(name) and number(count)}

    @property
    def _devices(self) -> dict[str, str]:
        return self.requests | self.limits

    @property
    def security(self) -> Mapping[str, object]:
        """Security context of the container itself."""
        return mapping(self.document.get("securityContext"))

    @property
    def capabilities(self) -> set[str]:
        """Added capabilities, without the prefix CAP_."""
        return {
            word.upper().removeprefix("CAP_")
            for word in scalar_list(mapping(self.security.get("capabilities")).get("add"))
        }

    @property
    def is_privileged(self) -> bool:
        """True if the container is privileged."""
        return self.security.get("privileged") is True

    @property
    def environment(self) -> dict[str, str]:
        """Variables with literal values. The last of several with the same name applies, as in the container."""
        return {
            str(each["name"]): str(each.get("value", ""))
            for each in mappings(self.document.get("env"))
            if "name" in each and "valueFrom" not in each
        }

    @property
    def unresolved_env(self) -> list[str]:
        """Names of variables whose values are known only to the cluster."""
        named = [str(each.get("name")) for each in mappings(self.document.get("env")) if "valueFrom" in each]
        kept = [each for each in named if not _is_downward_api(self.document, each)]
        sources = mappings(self.document.get("envFrom"))
        return kept + [f"{kind}/{mapping(value).get('name', '?')}" for each in sources for kind, value in each.items()]

    @property
    def command_line(self) -> list[str]:
        """Command and arguments; empty if the image defines them."""
        return [*scalar_list(self.document.get("command")), *scalar_list(self.document.get("args"))]

    def mount_at(self, path: str) -> Mapping[str, object]:
        """Return the mount at a path, or an empty mapping."""
        return next(
            (
                each
                for each in mappings(self.document.get("volumeMounts"))
                if str(each.get("mountPath")).rstrip("/") == path
            ),
            {},
        )


def _is_downward_api(document: Mapping[str, object], name: str) -> bool:
    """Return True if a variable is set from a field of the pod, such as its name; rules ignore these."""
    for each in mappings(document.get("env")):
        if each.get("name") == name:
            return "fieldRef" in mapping(each.get("valueFrom")) or "resourceFieldRef" in mapping(each.get("valueFrom"))
    return False
