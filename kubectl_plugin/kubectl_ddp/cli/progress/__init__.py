"""Progress of a job while a command waits for it: one rewritten line on a terminal, plain lines elsewhere.

:class:`~kubectl_ddp.cli.progress.display.ProgressDisplay` receives the states of the job.
"""
