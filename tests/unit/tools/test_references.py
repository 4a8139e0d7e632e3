"""The check of class names and of references in docstrings, and that this project passes it."""

from __future__ import annotations

import pytest

from tools.references import Module, dead_references, read_modules, repeated_classes

LEASE = """
class Store:
    def __init__(self):
        self.path = ""

class Lease(Store):
    def renew(self): ...
"""


def dead(docstring: str) -> bool:
    """Whether a reference of ``ddp_trainer.net.client`` names nothing."""
    modules = {
        "ddp_trainer": Module.of(""),
        "ddp_trainer.net": Module.of(""),
        "ddp_trainer.net.lease": Module.of(LEASE),
        "ddp_trainer.net.client": Module.of(f'"""{docstring}"""\nfrom ddp_trainer.net.lease import Lease\nLIMIT = 3\n'),
    }
    return bool(list(dead_references(modules)))


def test_the_project_has_no_dead_reference_and_no_class_name_twice() -> None:
    modules = read_modules()
    assert len(modules) > 500
    assert [*repeated_classes(modules), *dead_references(modules)] == []


@pytest.mark.parametrize(
    "target",
    [
        ":class:`ddp_trainer.net.lease.Lease`",
        ":meth:`~ddp_trainer.net.lease.Lease.renew`",
        ":attr:`ddp_trainer.net.lease.Lease.path`",
        ":mod:`ddp_trainer.net.lease`",
        ":mod:`lease`",
        ":class:`Lease`",
        ":meth:`.Lease.renew`",
        ":data:`LIMIT`",
        ":exc:`ValueError`",
        ":class:`torch.nn.Module`",
    ],
)
def test_a_reference_to_what_is_there_passes(target: str) -> None:
    assert not dead(target)


@pytest.mark.parametrize(
    "target",
    [
        ":class:`ddp_trainer.net.lease.Claim`",
        ":meth:`~ddp_trainer.net.lease.Lease.expire`",
        ":mod:`ddp_trainer.net.claim`",
        ":class:`Claim`",
        ":meth:`.Lease.expire`",
        ":func:`renew_lease`",
    ],
)
def test_a_reference_to_what_is_gone_is_found(target: str) -> None:
    assert dead(target)


def test_a_class_name_is_found_twice_in_a_package_and_not_in_two() -> None:
    modules = {
        f"{place}.store": Module.of(LEASE) for place in ("kubectl_ddp.kube", "kubectl_ddp.spec", "ddp_trainer.net")
    }
    assert list(repeated_classes(modules)) == [
        "class Lease is in kubectl_ddp.kube.store, kubectl_ddp.spec.store",
        "class Store is in kubectl_ddp.kube.store, kubectl_ddp.spec.store",
    ]
