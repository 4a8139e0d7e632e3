"""Commands that run kubectl for terminals and tunnels.

Users of a cluster have kubectl, which supports terminal sizes, raw keys, the protocols of all releases and proxies, and
all credentials. It replaces this process, so the user gets its exit code, signals and terminal directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.kube.objects import Object, main_container


class Kubectl:
    """Commands for kubectl, with the same cluster and namespace as this process."""

    def __init__(self, namespace: str, access: Access) -> None:
        """Use the given flags. kubectl reads all other settings from the same files as this process."""
        self._access = access.kubectl_flags
        self._namespace = namespace

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """Return a ``kubectl exec`` command. Raises PreflightFailed if kubectl is not installed."""
        manner = [flag for flag, is_set in (("--stdin", entry.stdin), ("--tty", entry.terminal)) if is_set]
        variables = [f"{name}={value}" for name, value in entry.variables.items()]
        words = [*(["env", *variables] if variables else []), *entry.words]
        return self._exec_command(
            "exec", *manner, pod["metadata"]["name"], f"--container={main_container(pod)}", "--", *words
        )

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand:
        """Return a ``kubectl port-forward`` command. Raises PreflightFailed if kubectl is not installed."""
        return self._exec_command("port-forward", pod["metadata"]["name"], *ports)

    def forward_service(self, namespace: str, name: str, ports: str) -> ExecCommand:
        """Return a ``kubectl port-forward`` command to a Service of any namespace. Raises PreflightFailed without
        kubectl.
        """
        return self._exec_command("port-forward", f"service/{name}", ports, namespace=namespace)

    def _exec_command(self, command: str, *words: str, namespace: str | None = None) -> ExecCommand:
        import shutil  # noqa: PLC0415 - only for commands that run kubectl

        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise PreflightFailed(
                f"{command} needs kubectl, which was not found on PATH.",
                hint="Install it: https://kubernetes.io/docs/tasks/tools/.",
            )
        flags = (*self._access, f"--namespace={namespace or self._namespace}")
        return ExecCommand(words=(kubectl, command, *flags, *words))
