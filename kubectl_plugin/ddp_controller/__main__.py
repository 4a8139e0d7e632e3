"""Command line of the controller: ``python -m ddp_controller``."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from dataclasses import replace
from functools import partial

from ddp_controller.lease import Lease
from ddp_controller.loop import Controller, log, retry_unreachable
from ddp_controller.metrics import ControllerMetrics
from ddp_controller.rbac_rules import check_rights
from ddp_controller.running_job import Timing
from ddp_controller.world import World
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import DdpError
from kubectl_ddp.util.concurrency import Stop

REQUEST_SECONDS = 5.0
"""Timeout of one request: shorter than the margin between the deadline and the end of the Lease."""


def main(argv: list[str] | None = None) -> int:
    """Run the controller, and return its exit code: 0 after SIGTERM, else that of the error (docs/controller.md)."""
    given = _parser().parse_args(argv)
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    timing = Timing(settle=given.settle, replacement_timeout=given.patience, cooldown=given.cooldown)
    metrics = ControllerMetrics()
    try:
        connection = connect()
        api = Api(replace(connection, request_seconds=REQUEST_SECONDS))
        namespace = given.namespace or connection.namespace
        end = metrics.serve(given.port)  # a probe is answered while the API server is not
        review = partial(check_rights, api, namespace, given.only_namespace, has_ddpjobs=given.ddpjobs)

        def started() -> World:
            review()
            taints = dict.fromkeys(given.taint, "configured")
            world = World(api, taints=taints, namespaces=given.only_namespace, has_ddpjobs=given.ddpjobs)
            world.start()
            return world

        if (world := retry_unreachable(started, stop)) is not None:
            identity = f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{os.getpid()}"
            log("started", identity=identity, server=connection.server)
            lease = Lease(api, namespace, identity)
            Controller(
                api=api, world=world, lease=lease, timing=timing, metrics=metrics, stop=stop, check_rights=review
            ).run()
        end()
    except DdpError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    log("stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddp_controller", description=__doc__)
    parser.add_argument("--namespace", metavar="NAME", help="namespace of the Lease (default: that of the pod)")
    parser.add_argument("--port", type=int, default=9465, help="port of /metrics, /healthz and /readyz (9465)")
    for name, default in (("settle", 10.0), ("patience", 120.0), ("cooldown", 3.0)):
        text = f"{name} time in seconds ({default:g}), see docs/controller.md"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="SECONDS", help=text)
    parser.add_argument(
        "--taint", action="append", default=[], metavar="KEY", help="further taint or condition of a node that will go"
    )
    parser.add_argument(
        "--only-namespace", action="append", default=[], metavar="NAME", help="namespace to manage, repeated (all)"
    )
    parser.add_argument("--ddpjobs", action="store_true", help="create the objects of DDPJobs, and keep their status")
    return parser


if __name__ == "__main__":
    sys.exit(main())
