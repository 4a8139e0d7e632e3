"""Quota that a ClusterQueue can use, by its cohort's limits for lending and borrowing."""

from ddp_controller.quota import Share, shares_of
from kubectl_ddp.kube.objects import Object

GPU = "nvidia.com/gpu"


def a_queue(name: str, quota: int, used: int = 0, *, cohort: str = "", **limits: str) -> tuple[Object, int]:
    flavor = {"name": "any", "resources": [{"name": GPU, "nominalQuota": str(quota), **limits}]}
    group = {"coveredResources": [GPU], "flavors": [flavor]}
    return {"metadata": {"name": name}, "spec": {"cohortName": cohort, "resourceGroups": [group]}}, used


def share(*queues: tuple[Object, int]) -> Share:
    """Share of the first queue."""
    usage = {str(cluster["metadata"]["name"]): {("any", GPU): used * 1000} for cluster, used in queues}
    clusters = [cluster for cluster, _ in queues]
    [only] = shares_of(clusters[0], clusters, usage)
    return only


def borrowable(*queues: tuple[Object, int]) -> int:
    found = share(*queues)
    return (found.free - found.unused) // 1000


def test_what_a_cohort_leaves_unused_can_be_borrowed_up_to_the_limits() -> None:
    own = a_queue("lab", 8, 8, cohort="all")
    other = a_queue("other", 16, 6, cohort="all")
    assert borrowable(own, other, a_queue("stranger", 99, cohort="elsewhere")) == 10
    assert borrowable(a_queue("lab", 8, 12, cohort="all"), other) == 6, "4 are borrowed already"
    assert borrowable(own, a_queue("other", 16, 6, cohort="all", lendingLimit="3")) == 3
    assert borrowable(a_queue("lab", 8, 9, cohort="all", borrowingLimit="3"), other) == 2
    assert borrowable(own, other, a_queue("third", 0, 7, cohort="all")) == 3, "the third has borrowed 7"
    assert borrowable(a_queue("lab", 8, 8), other) == 0


def test_quota_that_the_cohort_has_borrowed_is_not_free() -> None:
    """The nominal quota is 4: the queue uses 2, and the cohort borrows the rest."""
    own = a_queue("lab", 4, 2, cohort="all")
    found = share(own, a_queue("other", 0, 2, cohort="all"))
    assert (found.free, found.unused) == (0, 0)
    found = share(own, a_queue("other", 0, 1, cohort="all"))
    assert (found.free, found.unused) == (1_000, 1_000)
    found = share(own, a_queue("other", 0, 1, cohort="all"), a_queue("third", 5, cohort="all", lendingLimit="3"))
    assert (found.free, found.unused) == (4_000, 2_000)
