"""Command ``kubectl ddp why``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output, style


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@shared_options("json", "yaml")
def why(options: Options, job: str | None) -> None:
    """Diagnose a job: print causes with evidence and fix, the likeliest cause first.

    The exit code is the class of the first cause: 0 the job runs or succeeded, 10 its code failed, 11 a machine
    failed, 12 it is suspended or being deleted, 13 it waits for something, 14 it hangs.
    """
    from kubectl_ddp.observe.result_annotations import persist_result  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.why.diagnosis import diagnosis_text, diagnosis_to_dict, gather, run_checks  # noqa: PLC0415

    backend, name = target(options, job)
    facts = gather(backend, name)
    persist_result(backend, facts.job, facts.state)
    found = run_checks(facts)
    if options.output is not None:
        print_output(diagnosis_to_dict(facts, found), options.output)
    else:
        click.echo(diagnosis_text(facts, found, style(options)))
    for sentence in facts.around.unseen:
        options.print_message(f"Not looked at: {sentence}")
    if found and found[0].exit_code:
        click.get_current_context().exit(found[0].exit_code)
