"""The cuda image holds what its compiler, its networks and the documents of the fabrics demand of it."""

from __future__ import annotations

import re

import pytest

from kubectl_ddp.fabrics.catalog import FabricRequirement, fabrics
from tools.release.project import ROOT

ESSENTIAL = {"bash"}
"""Packages of Debian that no image of it lacks (``Essential: yes``)."""
COMPILERS = {"gcc", "g++", "libc6-dev"}
"""Triton calls gcc at its first kernel (triton/runtime/build.py), Inductor g++ for what runs on the processor
(torch/_inductor/config.py, ``cpp.cxx``); neither depends on the headers of the C library."""
NEEDS = {need.message: need for profile in fabrics().values() for need in profile.needs}.values()


def stage(name: str) -> str:
    """The instructions of one target, each in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    [found] = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def installed(name: str) -> set[str]:
    """Debian packages that a target adds."""
    commands = [part.split() for part in re.split(r"&&|\n", stage(name)) if "apt-get install" in part]
    return {word for words in commands for word in words[words.index("install") + 1 :] if not word.startswith("-")}


def test_the_cuda_image_can_compile() -> None:
    assert installed("cuda") >= COMPILERS
    assert installed("cpu") == set()


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.message[:40])
def test_the_cuda_image_holds_what_a_fabric_demands_of_it(need: FabricRequirement) -> None:
    assert set(need.packages) <= installed("cuda") | ESSENTIAL
    for package in need.packages:
        assert package in need.message
    if re.search(r"\bin the image\b|\bimage must hold\b", need.message):
        assert bool(need.packages) is not need.is_vendors, "name the packages, or say that they are the vendor's"


def test_the_image_ends_as_a_user_that_is_not_root_and_leaves_no_package_lists() -> None:
    assert re.findall(r"^USER (\S+)", stage("shipped") + stage("cuda"), re.MULTILINE)[-1] == "65532:65532"
    assert "rm -rf /var/lib/apt/lists/*" in stage("cuda")
