"""Controller of running jobs: moves pods before their node goes, and resizes elastic jobs by quota.

Decisions are pure functions of the objects on the API server: :mod:`~ddp_controller.pod_move`,
:mod:`~ddp_controller.pod_move` and :mod:`~ddp_controller.quota`. :mod:`~ddp_controller.loop`
reads the objects and carries decisions out, while this process holds the Lease. All state is in the objects.
"""
