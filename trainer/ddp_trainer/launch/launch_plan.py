"""Plan of one launch: :func:`make_plan` makes a :class:`Plan` from flags and environment. ``ddp-launch`` runs it."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch import config
from ddp_trainer.launch.agent.agent_state import Limits
from ddp_trainer.launch.host.endpoint import Endpoint, is_this_host, parse_endpoint, pod_address, reserve_port
from ddp_trainer.launch.host.environment import slices_for
from ddp_trainer.launch.host.secret_file import optional_secret, required_secret
from ddp_trainer.launch.protocol.console import LaunchError, log_line
from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.messages import Policy
from ddp_trainer.launch.rendezvous.hang_limits import HangPolicy
from ddp_trainer.launch.rendezvous.hang_limits import policy_of as hang_policy_of
from ddp_trainer.launch.workers.logs import LogSpec
from ddp_trainer.launch.workers.worker_group import Program
from ddp_trainer.net.arguments import node_index
from ddp_trainer.net.run_secret import RunSecret

_STATIC_PORT: Final = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Values of this node for the run, from flags and environment."""

    arguments: argparse.Namespace
    conf: config.Conf
    policy: Policy
    node: Node
    endpoint: Endpoint | None
    """Endpoint of the store; None if no store is needed."""
    slices: tuple[str, ...]
    """UUIDs of MIG slices to hand out to workers; empty for whole GPUs."""
    secret: RunSecret | None
    """Secret that authenticates the nodes to each other; None if this node meets no other, or in a static launch
    without one.
    """
    is_static: bool
    fixed_port: int
    """Port at which the ranks of a launch on one node meet; 0 for a new one in each generation."""
    hosts_store: bool
    """True if this launcher starts the store, which then dies with it."""
    limits: Limits
    program: Program
    logs: LogSpec
    signals: Sequence[signal.Signals]
    hangs: HangPolicy

    @property
    def has_store(self) -> bool:
        """True if a store in another process forms the worker groups."""
        return self.endpoint is not None and not self.is_static


def make_plan(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """Return the plan for these flags.

    Raises:
        LaunchError: A flag or a variable is invalid.
    """
    config.check_backend(arguments.rdzv_backend)
    conf = config.conf_of(arguments.rdzv_conf)
    policy = config.policy_of(arguments, conf)
    endpoint: Endpoint | None = None
    secret_path = conf.secret_file or environ.get(Env.SECRET_FILE, "")
    is_alone = policy.max_nodes == 1 and _needs_no_store(arguments, conf, has_secret=bool(secret_path))
    is_static = arguments.rdzv_backend == "static" and not is_alone and not arguments.standalone
    if arguments.standalone or is_alone:
        # As in torchrun, a launch without peers is a separate run.
        arguments.rdzv_id = uuid.uuid4().hex if arguments.rdzv_id == "none" else arguments.rdzv_id
    if arguments.standalone:
        policy = replace(policy, min_nodes=1, max_nodes=1)
    elif is_static:
        endpoint = _static_endpoint(arguments, policy)
        policy = _static_policy(policy)
    elif not is_alone:
        endpoint = _store_endpoint(arguments)
    fixed_port = _free_port_of(arguments) if is_alone and arguments.rdzv_backend == "static" else 0
    node = _this_node(arguments, environ)
    workers, one_each = node.local_world_size, arguments.virtual_local_rank
    slices, doubt = slices_for(workers, environ, one_each=one_each)
    if sentence := doubt or config.check_gpu_count(workers, environ, one_each=one_each):
        log_line(sentence)
    return Plan(
        arguments=arguments,
        conf=conf,
        policy=policy,
        node=node,
        endpoint=endpoint,
        slices=slices,
        secret=_secret(secret_path, arguments.rdzv_id, is_static=is_static) if endpoint else None,
        is_static=is_static,
        fixed_port=fixed_port,
        hosts_store=endpoint is not None and not is_static and _hosts_store(arguments, conf, endpoint),
        limits=config.limits_of(arguments, conf, environ),
        program=config.program_of(arguments, environ),
        logs=config.logs_of(arguments, environ),
        signals=config.parse_signals(arguments.signals_to_handle),
        hangs=hang_policy_of(arguments.on_hang, arguments.hang_floor, environ),
    )


def _needs_no_store(arguments: argparse.Namespace, conf: config.Conf, *, has_secret: bool) -> bool:
    """Return whether a launch on one node needs no store.

    It needs none without an endpoint, with the endpoint of a static group on this host, or with a c10d endpoint on this
    host that no other node may join. ``torchrun --nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:0`` is usual,
    and has no secret.
    """
    if arguments.rdzv_backend == "static":
        return is_this_host(_named_endpoint(arguments).host)
    if not arguments.rdzv_endpoint:
        return True
    is_c10d = arguments.rdzv_backend == "c10d" and conf.is_host is not False
    return not has_secret and is_c10d and is_this_host(parse_endpoint(arguments.rdzv_endpoint).host)


def _hosts_store(arguments: argparse.Namespace, conf: config.Conf, endpoint: Endpoint) -> bool:
    """Return whether this node hosts the store, by torchrun's rule.

    The rule is ``is_host`` in --rdzv-conf, else whether the c10d endpoint is this host.
    """
    if conf.is_host is not None:
        return conf.is_host
    return arguments.rdzv_backend == "c10d" and is_this_host(endpoint.host)


def _secret(path: str, run_id: str, *, is_static: bool) -> RunSecret | None:
    """Return the secret of a run on several nodes; None in a static launch without one.

    Raises:
        LaunchError: A store needs a secret and none is usable.
    """
    if not is_static:
        return required_secret(path, run_id)
    secret = optional_secret(path, "")
    if secret is None:
        log_line(
            "This static launch has no secret, so its preflight believes every host that reaches it; set "
            f"{Env.SECRET_FILE} to a file with the same secret on all nodes."
        )
    return secret


def _this_node(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Node:
    return Node(
        token=uuid.uuid4().hex,
        name=environ.get(Env.POD_NAME) or f"{socket.gethostname()}-{os.getpid()}",
        index=node_index(environ, arguments.node_rank if "node_rank" in arguments.given else None),
        local_world_size=config.local_world_size_of(arguments.nproc_per_node, environ),
        role=arguments.role,
        address=arguments.local_addr or pod_address(environ),
    )


def _store_endpoint(arguments: argparse.Namespace) -> Endpoint:
    if not arguments.rdzv_endpoint:
        raise LaunchError(
            f"--rdzv-backend {arguments.rdzv_backend} needs --rdzv-endpoint HOST:PORT of the store, which "
            "`python -m ddp_trainer store` starts."
        )
    return parse_endpoint(arguments.rdzv_endpoint)


def _static_endpoint(arguments: argparse.Namespace, policy: Policy) -> Endpoint:
    if policy.min_nodes != policy.max_nodes:
        raise LaunchError(f"--nnodes {arguments.nnodes}: a static launch has a fixed number; use --rdzv-backend c10d.")
    if not 0 <= arguments.node_rank < policy.max_nodes:
        raise LaunchError(f"--node-rank {arguments.node_rank} is not below --nnodes {policy.max_nodes}.")
    endpoint = _named_endpoint(arguments)
    return endpoint if endpoint.port or arguments.master_port == 0 else replace(endpoint, port=_STATIC_PORT)


def _free_port_of(arguments: argparse.Namespace) -> int:
    """Return the port that the user has named for the ranks of one node; 0 for none.

    Raises:
        LaunchError: The port is in use.
    """
    port = _named_endpoint(arguments).port
    try:
        reserve_port(port).close()
    except OSError as error:
        raise LaunchError(
            f"Port {port}, at which the ranks are to meet, is not available: {error.strerror}; name another one."
        ) from None
    return port


def _named_endpoint(arguments: argparse.Namespace) -> Endpoint:
    """Return where the flags of a static group let its ranks meet; port 0 if they name none."""
    port = arguments.master_port or 0
    if arguments.rdzv_endpoint:
        return parse_endpoint(arguments.rdzv_endpoint, port)
    if not arguments.master_addr.strip("[] "):
        raise LaunchError(f"--master-addr {arguments.master_addr!r} is not a host; name the first node's.")
    return parse_endpoint(f"[{arguments.master_addr.removeprefix('[').removesuffix(']')}]:{port}")


def _static_policy(policy: Policy) -> Policy:
    if policy.max_restarts:
        log_line(
            f"--max-restarts {policy.max_restarts} has no effect in a static launch, whose nodes cannot agree on a "
            "restart; use --rdzv-backend c10d."
        )
    return replace(policy, max_restarts=0)
