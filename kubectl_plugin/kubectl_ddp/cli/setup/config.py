"""Command ``kubectl ddp config``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from kubectl_ddp.backends.access import kubeconfig_files
from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.backends.select import cluster_of, has_kubeconfig, is_local
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.text_table import NOTHING, Cell, Table

if TYPE_CHECKING:
    from kubectl_ddp.backends.cluster import ClusterBackend

VIEW, SET, UNSET, PATH = "view", "set", "unset", "path"
WORDS: Final = {VIEW: (0, 0), SET: (2, 2), UNSET: (1, 1), PATH: (0, 0)}
"""Action → minimum and maximum number of words after it."""

Row = tuple[str, Any, str]
"""Key, value, and origin of the value."""

HELP: Final = """Show the values that commands use, and where each comes from; set and unset defaults of your own.

\b
view             context, namespace, engine, and defaults for jobs (default)
set KEY VALUE    set a default for submit: a key of a job file
unset KEY        remove a default
path             print the path of the file with the defaults
"""


class _Action(click.Choice[str]):
    """Type of the action. kubectl's own actions on a kubeconfig are refused with the command for them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value) not in self.choices and "context" in str(value):
            raise UsageError(
                f"'config {value}' is about the kubeconfig, which kubectl changes.",
                hint=f"Write 'kubectl config {value}'; --context chooses a context for one command.",
            )
        return super().convert(value, param, ctx)


@click.command(cls=GroupedHelpCommand, help=HELP)
@click.argument("action", type=_Action([*WORDS]), default=VIEW)
@click.argument("words", nargs=-1, metavar="[KEY [VALUE]]")
@shared_options("json", "yaml")
def config(options: Options, action: str, words: tuple[str, ...]) -> None:
    """Show the values that commands use; set and unset defaults of your own."""
    from kubectl_ddp.spec.external_values import config_file, write  # noqa: PLC0415 - not needed for help and completion

    low, high = WORDS[action]
    if not low <= len(words) <= high:
        usage = {SET: "set KEY VALUE", UNSET: "unset KEY"}.get(action, action)
        raise UsageError(
            f"'config {action}' takes {high or 'no'} word{'s' * (high != 1)}, not {len(words)}.",
            hint=f"Write '{usage}'.",
        )
    if action == PATH:
        click.echo(config_file())
    elif action in {SET, UNSET}:
        write(config_file(), words[0], words[1] if action == SET else None)
        options.print_message(
            f"{words[0]} is {'now ' + words[1] if action == SET else 'not set any more'}, in {config_file()}."
        )
    else:
        _view(options)


def _view(options: Options) -> None:
    rows = [*_place(options), *_files(), *_defaults()]
    if options.output is not None:
        items = [{"key": key, "value": value, "from": origin} for key, value, origin in rows]
        print_output({"apiVersion": API_VERSION, "kind": "Config", "items": items}, options.output)
        return
    table = Table(("KEY", "VALUE", "FROM"))
    table.rows.extend(
        [Cell(key), Cell(NOTHING if value is None else str(value)), Cell(origin)] for key, value, origin in rows
    )
    click.echo(table.render(style(options)))


def _place(options: Options) -> Iterator[Row]:
    """Yield the place that commands use with these flags."""
    if is_local(options):
        why = "--local" if options.local else "there is no kubeconfig"
        yield "place", "this machine", why
        return
    backend = cluster_of(options)
    files = os.pathsep.join(map(str, kubeconfig_files())) or "the pod's service account"
    kubeconfig = options.kubeconfig or files
    yield "place", "a cluster", "--kubeconfig" if options.kubeconfig else "the kubeconfig"
    yield "kubeconfig", kubeconfig, _value_origin(options.kubeconfig, "--kubeconfig", _kubeconfig_origin())
    yield "context", backend.where, _value_origin(options.context, "--context", "current-context of the kubeconfig")
    yield "namespace", backend.namespace, _value_origin(options.namespace, "--namespace", "the context, or 'default'")
    yield _engine(backend)


def _value_origin(value: str | None, flag: str, otherwise: str) -> str:
    return flag if value else otherwise


def _kubeconfig_origin() -> str:
    if not has_kubeconfig() or not kubeconfig_files():
        return "the pod"
    return "$KUBECONFIG" if os.environ.get("KUBECONFIG") else "kubectl's own place"


def _engine(backend: ClusterBackend) -> Row:
    """Return the engine that ``auto`` selects in the cluster."""
    from kubectl_ddp.engines import Engine  # noqa: PLC0415
    from kubectl_ddp.render.choose import choose_engine  # noqa: PLC0415 - not needed for help and completion

    try:
        return "engine auto", str(choose_engine(Engine.AUTO, backend.facts())), "the first that the cluster serves"
    except DdpError as error:
        return "engine auto", None, error.message


def _files() -> Iterator[Row]:
    import shutil  # noqa: PLC0415 - not needed for help and completion

    from kubectl_ddp.spec.external_values import config_file  # noqa: PLC0415

    yield "config", str(config_file()), "is there" if config_file().exists() else "is not there"
    yield "local jobs", str(local_jobs_directory()), "$XDG_STATE_HOME, or ~/.local/state"
    yield "kubectl", shutil.which("kubectl"), "$PATH; exec and port-forward need it"


def _defaults() -> Iterator[Row]:
    """Yield the default values of a job's keys."""
    from kubectl_ddp.spec.external_values import IMAGE_VARIABLE, defaults_of  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.spec.fields import DEFAULTS  # noqa: PLC0415
    from kubectl_ddp.version import default_image  # noqa: PLC0415

    values = {key: (given.raw, given.origin.place) for key, given in defaults_of().items()}
    image = os.environ.get(IMAGE_VARIABLE)
    if image:
        values["image"] = (image, f"${IMAGE_VARIABLE}")
    known = {"image": default_image(), **DEFAULTS}
    for key in [*known, *(key for key in values if key not in known)]:
        value, origin = values.get(key, (known.get(key), "built in"))
        yield key, value, origin
