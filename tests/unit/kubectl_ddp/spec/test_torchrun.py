"""Jobs with ``launcher: torchrun``: keys that they refuse, and notes on what they lack."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ddp_trainer.common.parallel_dims import LayoutRange
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.notes import spec_notes
from kubectl_ddp.values.pod import Topology
from kubectl_ddp.values.program import Gang, Launcher, Module
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job

REPLICAS: dict[str, Any] = {
    "topology": (Topology.parse("replica=rack"),),
    "gang": Gang.KUEUE,
    "queue": "team",
    "nnodes": NodeRange(2, 2),
    "parallel": LayoutRange.parse("replicate=2,shard=2"),
    "args": (),
    "program": Module("mine"),
}


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"spares": 1}, "Only ddp-launch keeps spares (1), and the launcher of the job is torchrun. Leave spares out"),
    ({"torchrun_shim": True}, "torchrunShim leads a torchrun of the program to ddp-launch"),
    ({"requirements": ("einops",)}, "Make an image with the packages (--build)."),
    ({"compile_cache": "cache"}, "set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR with --env."),
    (REPLICAS, "Only ddp-launch orders ranks by their pods"),
])  # fmt: skip
def test_what_only_ddp_launch_does_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    a_job(**changes)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        a_job(launcher=Launcher.TORCHRUN, **changes)


def test_the_notes_of_a_job_of_torchrun_list_what_it_lacks_and_what_has_no_effect() -> None:
    job = a_job(launcher=Launcher.TORCHRUN, runtime_image="ddp-runtime:1", env={"DDP_ON_HANG": "act", "A": "1"})
    notes = spec_notes(job)
    report = [note for note in notes if note.startswith("torchrun: ")]
    for lack in ("a rank fails", "restart budget", "spares", "first error", "rank metrics"):
        assert any(note.startswith(f"torchrun: {lack}") for note in report)
    assert report[-1] == "torchrun: without an effect: DDP_ON_HANG."
    assert not [note for note in notes if "one store decides membership" in note]
    assert not [note for note in spec_notes(a_job()) if "torchrun" in note]
