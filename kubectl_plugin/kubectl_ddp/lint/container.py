"""A container as the rules see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.lint.accessors import mapping, mappings, number, scalar_list, string_mapping

_GPU: Final = re.compile(r"(nvidia|amd)\.com/(gpu|mig-.+)")
_RDMA: Final = re.compile(r"rdma/.+|.+/(efa|roce.*|hostdev|(shared_)?ib|(.*[-_])?rdma([-_].*)?|(.*[-_])?hca([-_].*)?)")
"""Names of device plugins' resources: ``rdma/ib``, ``vpc.amazonaws.com/efa``, ``nvidia.com/rdma-vf`` and others."""


def is_rdma(resource: str) -> bool:
    """Whether a resource is a device for RDMA.

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
        """Its name."""
        return str(self.document.get("name", "?"))

    @property
    def limits(self) -> dict[str, str]:
        """Amounts of resources that it cannot exceed."""
        return string_mapping(mapping(self.document.get("resources")).get("limits"))

    @property
    def requests(self) -> dict[str, str]:
        """Amounts of resources that it is sure of."""
        return string_mapping(mapping(self.document.get("resources")).get("requests"))

    @property
    def gpus(self) -> int:
        """GPUs, or slices of them."""
        return sum(number(count) for name, count in self._devices.items() if _GPU.fullmatch(name))

    @property
    def rdma(self) -> dict[str, int]:
        """RDMA devices by the name of the resource."""
        return {name: number(count) for name, count in self._devices.items() if is_rdma(name) and number(count)}

    @property
    def _devices(self) -> dict[str, str]:
        return self.requests | self.limits

    @property
    def security(self) -> Mapping[str, object]:
        """What it says of its own."""
        return mapping(self.document.get("securityContext"))

    @property
    def capabilities(self) -> set[str]:
        """Those it adds, without the beginning CAP_."""
        return {
            word.upper().removeprefix("CAP_")
            for word in scalar_list(mapping(self.security.get("capabilities")).get("add"))
        }

    @property
    def is_privileged(self) -> bool:
        """Whether it may do everything."""
        return self.security.get("privileged") is True

    @property
    def environment(self) -> dict[str, str]:
        """Variables whose values stand in the file; of two of one name the last, as in the container."""
        return {
            str(each["name"]): str(each.get("value", ""))
            for each in mappings(self.document.get("env"))
            if "name" in each and "valueFrom" not in each
        }

    @property
    def unresolved_env(self) -> list[str]:
        """Variables whose values only the cluster knows."""
        named = [str(each.get("name")) for each in mappings(self.document.get("env")) if "valueFrom" in each]
        kept = [each for each in named if not _is_downward_api(self.document, each)]
        sources = mappings(self.document.get("envFrom"))
        return kept + [f"{kind}/{mapping(value).get('name', '?')}" for each in sources for kind, value in each.items()]

    @property
    def command_line(self) -> list[str]:
        """Command and arguments; empty where the image says them."""
        return [*scalar_list(self.document.get("command")), *scalar_list(self.document.get("args"))]

    def mount_at(self, path: str) -> Mapping[str, object]:
        """The mount at a path; empty where there is none."""
        return next(
            (
                each
                for each in mappings(self.document.get("volumeMounts"))
                if str(each.get("mountPath")).rstrip("/") == path
            ),
            {},
        )


def _is_downward_api(document: Mapping[str, object], name: str) -> bool:
    """Whether a variable is a field of the pod, such as its name: nothing that a rule is about."""
    for each in mappings(document.get("env")):
        if each.get("name") == name:
            return "fieldRef" in mapping(each.get("valueFrom")) or "resourceFieldRef" in mapping(each.get("valueFrom"))
    return False
