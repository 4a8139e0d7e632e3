"""A job whose ranks share one model, on a real cluster: two pods of two processes each."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.cluster.live_cluster import Namespace, until

WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "and", "runs", "from", "what", "it", "has", "seen")
SIZE = ("--nnodes", "2", "--nproc", "2", "--cpu", "500m", "--memory", "2Gi", "--shm", "128Mi")
STEPS = 30
TRAIN = (
    *("--module", "ddp_trainer", "--", "train", "--task", "text", "--data", ".", "--window", "32"),
    *("--model", "gpt:layers=2,heads=2,width=32", "--global-batch", "32", "--epochs", "20", "--seed", "0"),
    *("--batch-slices", "2", "--max-steps", str(STEPS)),
)


@pytest.mark.timeout(900)
def test_a_model_in_slices_is_trained_and_survives_the_loss_of_a_pod(space: Namespace, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    random = Random(0)
    lines = (" ".join(random.choices(WORDS, k=12)) for _ in range(2500))
    (corpus / "corpus.txt").write_text("\n".join(lines))

    submit = ("submit", "--name", "slices", "--parallel", "replicate=2,tp=2", "--code", str(corpus))
    space.ddp(*submit, "--image", space.image, *SIZE, *TRAIN).ok()
    space.ddp("wait", "slices", "--for=step=3", "--timeout", "4m").ok()
    ranks = space.ddp("status", "slices", "--ranks", "-o", "json").ok().json["ranks"]
    places = [(rank["place"], rank["pod"]) for rank in ranks]
    assert places == [
        *[(f"r0 t{tp}", "slices-worker-0") for tp in range(2)],
        *[(f"r1 t{tp}", "slices-worker-1") for tp in range(2)],
    ]
    victim = space.pods()[1]["metadata"]
    space.api.delete(space.path("v1", "pods", victim["name"]), uid=victim["uid"])

    def has_successor() -> bool:
        uids = [pod["metadata"]["uid"] for pod in space.pods()]
        return len(uids) == 2 and victim["uid"] not in uids

    until("a new pod in the place of the deleted one", has_successor)
    done = space.ddp("wait", "slices", "--for=complete", "--timeout", "8m", seconds=500)
    assert done.code == 0, done.err + space.ddp("status", "slices").out + space.ddp("logs", "slices").out
    state = space.ddp("status", "slices", "-o", "json").ok().json
    summary = state["summary"]
    assert (state["state"], summary["result"], summary["world_size"]) == ("Succeeded", "succeeded", 4)
    assert (summary["steps"], summary["samples_lost"], summary["samples_repeated"]) == (STEPS, 0, 0)
    assert sum(summary["restarts"].values()) >= 1
