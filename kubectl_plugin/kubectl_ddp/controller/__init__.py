"""Controller of running jobs: moves pods before their node goes, and resizes elastic jobs by quota.

Decisions are pure functions of the objects on the API server: :mod:`~kubectl_ddp.controller.moves`,
:mod:`~kubectl_ddp.controller.budgets` and :mod:`~kubectl_ddp.controller.quota`. :mod:`~kubectl_ddp.controller.loop`
reads the objects and carries decisions out, while this process holds the Lease. All state is in the objects.
"""
