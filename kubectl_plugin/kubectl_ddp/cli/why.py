"""``kubectl ddp why``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.cli.target import print_document, style, target


@click.command()
@click.argument("job", required=False)
@shared_options("json", "yaml")
def why(options: Options, job: str | None) -> None:
    """Say why a job does what it does: what is the matter, what shows it, what helps; the likeliest cause first.

    The exit code tells the class of the first cause: 0 it runs or has succeeded, 10 its code failed, 11 a machine did,
    12 it is suspended or being deleted, 13 it waits for something, 14 it hangs.
    """
    from kubectl_ddp.keeping import keep_last_words  # noqa: PLC0415 - help and completion do without these
    from kubectl_ddp.why.chain import findings  # noqa: PLC0415
    from kubectl_ddp.why.gather import gather  # noqa: PLC0415
    from kubectl_ddp.why.tell import document, text  # noqa: PLC0415

    backend, name = target(options, job)
    facts = gather(backend, name)
    keep_last_words(backend, facts.job, facts.state)
    found = findings(facts)
    if options.output is not None:
        print_document(document(facts, found), options.output)
    else:
        click.echo(text(facts, found, style(options)))
    for sentence in facts.around.unseen:
        options.note(f"Not looked at: {sentence}")
    if found and found[0].code:
        click.get_current_context().exit(found[0].code)
