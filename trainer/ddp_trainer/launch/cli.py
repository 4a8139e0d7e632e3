"""``ddp-launch``: torchrun's command line with the agent of this package. :func:`main` reads the flags, makes a
:class:`~ddp_trainer.launch.launch_plan.Plan`, and runs :class:`~ddp_trainer.launch.agent.agent.Agent` with its
sidecars: the aggregator of metrics, and the store if this node hosts it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, Port
from ddp_trainer.launch import config, platform_defaults
from ddp_trainer.launch.agent.agent import Agent
from ddp_trainer.launch.agent.agent_config import AgentConfig
from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy
from ddp_trainer.launch.agent.previous_launcher import PreviousLauncher
from ddp_trainer.launch.agent.termination_report import TerminationReport
from ddp_trainer.launch.env_lint import lint_environment
from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.host.endpoint import Endpoint
from ddp_trainer.launch.host.environment import Launch
from ddp_trainer.launch.host.parent_link import ParentLink
from ddp_trainer.launch.host.run_dirs import prepare_run_dirs
from ddp_trainer.launch.launch_plan import Plan, make_plan
from ddp_trainer.launch.protocol.console import LaunchError, log_line
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import VERSION, Hello, ProtocolError, WorkerState, decode, encode
from ddp_trainer.launch.rendezvous.client import TcpLink
from ddp_trainer.launch.rendezvous.transport import HereLink, Link, StaticLink
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.sidecar import Sidecar
from ddp_trainer.net import asyncio_utils
from ddp_trainer.process.recorder import AgentRecorder, NoopAgentRecorder

MakeRecorder = Callable[[Path], AgentRecorder]
"""Function from a metrics directory to the recorder of this agent."""

_LAST_SCRAPE_SECONDS: Final = 610.0
"""Maximum wait for the last scrape of the aggregator. The aggregator's own limit is usually some seconds, and at
most 600.
"""
_AGGREGATOR_NICENESS: Final = 10
"""Niceness of the aggregator: its imports give way to those of the workers, which start at the same time."""
_LOOPBACK: Final = "127.0.0.1"


def main(
    argv: Sequence[str],
    *,
    recorder: MakeRecorder | None = None,
    parent: ParentLink | None = None,
) -> int:
    """Run the launcher, and return its exit code (:mod:`ddp_trainer.launch.protocol.exit_codes`).

    Args:
        argv: Arguments of the command line.
        recorder: Makes the recorder of this agent if metrics are enabled, which also starts an aggregator.
        parent: Connection to the :mod:`~ddp_trainer.launch.resident_parent` that starts the launcher again after a
            crash; None for none.
    """
    environ = dict(os.environ)
    try:
        if Env.PACKAGES in environ:
            from ddp_trainer.launch import packages  # noqa: PLC0415 - few jobs have requirements

            packages.activate(environ)
        arguments = parse(argv, environ)
        for sentence in platform_defaults.apply(arguments, environ):
            log_line(sentence)
        plan = make_plan(arguments, environ)
        if not arguments.no_lint:
            host = plan.endpoint.host if plan.endpoint else ""
            nproc = plan.node.local_world_size
            for sentence in lint_environment(environ, nodes=plan.policy.max_nodes, nproc=nproc, endpoint=host):
                log_line(sentence)
        with prepare_run_dirs(arguments, environ, plan.node.local_world_size, log_line) as (log_dir, metrics_dir):
            if environ.get(Env.TORCHRUN_SHIM) == "1":
                from ddp_trainer.launch import torchrun_shim  # noqa: PLC0415 - few jobs ask for it

                torchrun_shim.install(environ, log_dir)
            previous_launcher = _previous_launcher(plan, environ, parent)
            return asyncio_utils.run(_run(plan, environ, log_dir, metrics_dir, recorder, previous_launcher))
    except LaunchError as error:
        log_line(str(error))
        TerminationReport(environ).ended(error.exit_code, str(error))
        return error.exit_code


async def _run(
    plan: Plan,
    environ: dict[str, str],
    log_dir: Path,
    metrics_dir: Path,
    make_recorder: MakeRecorder | None,
    previous_launcher: PreviousLauncher,
) -> int:
    children = Children(asyncio.get_running_loop())
    aggregator: Sidecar | None = None
    store: Sidecar | None = None
    recorder: AgentRecorder = NoopAgentRecorder()
    port = plan.arguments.metrics_port
    wanted = any(environ.get(name) for name in (Env.METRICS_PORT, Env.RUN_DIR, Env.METRICS_DIR))
    if make_recorder and (port is not None or wanted):
        environ[Env.METRICS_DIR] = str(metrics_dir)
        flags = ["aggregate", "--directory", str(metrics_dir), *([] if port is None else ["--port", str(port)])]
        aggregator = Sidecar(children, flags, environ, niceness=_AGGREGATOR_NICENESS)
        recorder = make_recorder(metrics_dir)
        if isinstance(recorder, NoopAgentRecorder):
            del environ[Env.METRICS_DIR]  # it has printed why, and each worker would print the same
    if plan.conf.secret_file:
        environ[Env.SECRET_FILE] = plan.conf.secret_file
    if plan.endpoint and plan.hosts_store:
        store = Sidecar(children, _store_flags(plan, plan.endpoint), environ)
    try:
        setup = _setup(plan, environ, log_dir, metrics_dir, recorder, previous_launcher)

        async def wait_for_scrape() -> None:
            if aggregator is not None:
                await aggregator.finished(_LAST_SCRAPE_SECONDS)

        return await Agent(setup, _link(plan, environ), children, wait_for_scrape).run()
    finally:
        if store is not None:
            store.stop()
        if aggregator is not None:
            await aggregator.stopped()


def _setup(
    plan: Plan,
    environ: Mapping[str, str],
    log_dir: Path,
    heartbeat_dir: Path,
    recorder: AgentRecorder,
    previous_launcher: PreviousLauncher,
) -> AgentConfig:
    arguments, where = plan.arguments, str(plan.endpoint or "this node")
    launch = Launch(
        run_id=arguments.rdzv_id,
        local_world_size=plan.node.local_world_size,
        max_restarts=plan.policy.max_restarts,
        nodes=f"{plan.policy.min_nodes}:{plan.policy.max_nodes}",
        on_hang=str(plan.hangs.on_hang),
        role=arguments.role,
        virtual_local_rank=arguments.virtual_local_rank,
        slices=plan.slices,
        signals=arguments.signals_to_handle,
        cpus=config.cpus_of(arguments.numa_binding, plan.node.local_world_size, environ),
    )
    return AgentConfig(
        core=AgentStateMachine(
            hello=_registration_message(plan, environ, previous_launcher), limits=plan.limits, endpoint=where
        ),
        program=plan.program,
        launch=launch,
        logs=plan.logs,
        log_dir=log_dir,
        report=TerminationReport(environ),
        recorder=recorder,
        signals=plan.signals,
        environment=environ,
        preload=config.preload_of(arguments, environ),
        fork_server_delay=config.fork_server_delay_of(environ),
        care=config.parse_preflight_policy(arguments, environ),
        hangs=plan.hangs,
        heartbeat_dir=heartbeat_dir,
        previous_launcher=previous_launcher,
        fixed_port=plan.fixed_port,
        # Alone, or in a static launch, workers need not wait for a place.
        prepares=plan.has_store and plan.program.is_reference_trainer,
    )


def _previous_launcher(plan: Plan, environ: Mapping[str, str], parent: ParentLink | None) -> PreviousLauncher:
    """Return the launcher that ran before in this pod. Without a store that outlives a launcher, no crash is counted,
    and so none recorded.
    """
    is_recorded = parent is not None and plan.has_store and not plan.hosts_store
    return PreviousLauncher(plan.node.name, environ, is_recorded=is_recorded, parent=parent)


def _registration_message(plan: Plan, environ: Mapping[str, str], previous_launcher: PreviousLauncher) -> Hello:
    hello = Hello(
        version=VERSION,
        run_id=plan.arguments.rdzv_id,
        node=plan.node,
        policy=plan.policy,
        standing=WorkerState.IDLE,
        identity=config.identity_of(plan.program, environ) if plan.has_store else None,
        joins_preflight=plan.has_store
        and config.parse_preflight_policy(plan.arguments, environ) is not PreflightPolicy.OFF,
        crash=previous_launcher.crash,
    )
    try:
        decode(encode(hello))
    except ProtocolError as error:
        raise LaunchError(f"This node cannot be described to the store: {error}.") from None
    return hello


def _link(plan: Plan, environ: Mapping[str, str]) -> Link:
    loop = asyncio.get_running_loop()
    if plan.endpoint is None:
        return HereLink(loop, plan.node.address or _LOOPBACK)
    if plan.is_static:
        return StaticLink(loop, _static_assignment(plan, plan.endpoint), plan.node.token)
    assert plan.secret is not None  # noqa: S101 - make_plan requires one
    return TcpLink(plan.endpoint, plan.secret, source=environ.get(Env.POD_IP, ""), heartbeat=plan.conf.heartbeat)


def _static_assignment(plan: Plan, endpoint: Endpoint) -> Assignment:
    """Return the place of this node, computed: every node has as many workers as this one."""
    first_rank = plan.arguments.node_rank * plan.node.local_world_size
    world_size = plan.policy.max_nodes * plan.node.local_world_size
    return Assignment(
        number=1,
        fence=int(time.time() * 1000),
        node_rank=plan.arguments.node_rank,
        node_count=plan.policy.max_nodes,
        first_rank=first_rank,
        world_size=world_size,
        role_first_rank=first_rank,
        role_world_size=world_size,
        master_address=endpoint.host,
        master_port=endpoint.port,
    )


def _store_flags(plan: Plan, endpoint: Endpoint) -> list[str]:
    port = str(endpoint.port or int(Port.RENDEZVOUS))
    return ["store", "--if-free", "--port", port, "--run-id", plan.arguments.rdzv_id, "--first-seconds", "0"]
