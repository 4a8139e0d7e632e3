"""Requests to a pod's metrics port through the API server's proxy, without Prometheus."""

from __future__ import annotations

from ddp_trainer.common.constants import Port, PortName
from kubectl_ddp.backends.cluster.http.api import Api, pod_path
from kubectl_ddp.errors import DdpError, Forbidden, Unreachable
from kubectl_ddp.kube.objects import Object, main_container
from kubectl_ddp.util.bounded_answer import POD_ANSWER, AnswerLimits


def served(api: Api, pod: Object, path: str, limits: AnswerLimits = POD_ANSWER) -> str:
    """Return the response of the pod's metrics port at a path. Raises Unreachable and Forbidden."""
    try:
        return api.text(f"{pod_path(pod)}:{_port(pod)}/proxy{path}", limits=limits)
    except Forbidden:
        raise
    except DdpError as error:
        name = pod["metadata"]["name"]
        raise Unreachable(f"Pod '{name}' does not answer with its metrics: {error.message}") from error


def _port(pod: Object) -> int:
    ports = next((c.get("ports") or () for c in pod["spec"]["containers"] if c["name"] == main_container(pod)), ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PortName.METRICS), Port.METRICS)
