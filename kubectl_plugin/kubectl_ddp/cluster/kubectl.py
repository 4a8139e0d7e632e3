"""Hands over to kubectl what needs a terminal or a tunnel.

A person who has a cluster has kubectl, and it knows all of it: sizes of terminals, raw keys, the protocols of every
release and proxy, the credentials. Its process takes our place, so that its exit code, its signals and its terminal
are the person's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_ddp.access import Access
from kubectl_ddp.backend import Entry, ExecCommand, Object
from kubectl_ddp.cluster.resources import main_container
from kubectl_ddp.errors import PreflightFailed


class Kubectl:
    """kubectl, told to mean the same cluster and namespace as we do."""

    def __init__(self, namespace: str, access: Access) -> None:
        """With the flags that were given; the rest kubectl reads where we do."""
        self._access = access.kubectl_flags
        self._namespace = namespace

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """``kubectl exec``. Raises PreflightFailed when there is no kubectl."""
        manner = [flag for flag, is_set in (("--stdin", entry.stdin), ("--tty", entry.terminal)) if is_set]
        variables = [f"{name}={value}" for name, value in entry.variables.items()]
        words = [*(["env", *variables] if variables else []), *entry.words]
        return self._exec_command(
            "exec", *manner, pod["metadata"]["name"], f"--container={main_container(pod)}", "--", *words
        )

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand:
        """``kubectl port-forward``. Raises PreflightFailed when there is no kubectl."""
        return self._exec_command("port-forward", pod["metadata"]["name"], *ports)

    def forward_service(self, namespace: str, name: str, ports: str) -> ExecCommand:
        """``kubectl port-forward`` to a Service of any namespace. Raises PreflightFailed when there is no kubectl."""
        return self._exec_command("port-forward", f"service/{name}", ports, namespace=namespace)

    def _exec_command(self, command: str, *words: str, namespace: str | None = None) -> ExecCommand:
        import shutil  # noqa: PLC0415 - what is only read needs no kubectl

        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise PreflightFailed(
                f"There is no kubectl on PATH, and {command} is its work.",
                hint="Install it: https://kubernetes.io/docs/tasks/tools/.",
            )
        flags = (*self._access, f"--namespace={namespace or self._namespace}")
        return ExecCommand(words=(kubectl, command, *flags, *words))
