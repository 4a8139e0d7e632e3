"""The resources that a pod requests, by the scheduler's rules."""

import pytest

from kubectl_ddp.preflight.resources import format_quantity, milli_value, requests_of


def container(cpu: str, **more: object) -> dict[str, object]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("2", 2000), ("1500m", 1500), ("0.1", 100), ("1Gi", 2**30 * 1000), ("1G", 10**12)),
        *(("12E", 12 * 10**21), ("1e3", 10**6), ("1E3", 10**6), (".5", 500), ("1.", 1000), ("100u", 1)),
        *(("nonsense", 0), ("", 0)),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, expected: int) -> None:
    assert milli_value(text) == expected


def test_containers_add_up_and_init_containers_count_where_they_are_larger() -> None:
    pod = {"containers": [container("1"), container("500m")], "initContainers": [container("2")]}
    assert requests_of(pod) == {"cpu": 2000, "pods": 1000}
    assert requests_of(pod | {"initContainers": [container("1")]})["cpu"] == 1500


def test_a_sidecar_runs_beside_all_that_comes_after_it() -> None:
    pod = {"containers": [container("1")], "initContainers": [container("1", restartPolicy="Always"), container("3")]}
    assert requests_of(pod)["cpu"] == 4000
    assert requests_of(pod | {"initContainers": pod["initContainers"][:1]})["cpu"] == 2000


def test_a_limit_alone_is_a_request_and_what_the_pod_says_as_a_whole_counts() -> None:
    limited = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}], "overhead": {"cpu": "250m"}}
    assert requests_of(limited) == {"nvidia.com/gpu": 8000, "cpu": 250, "pods": 1000}
    assert requests_of({"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}})["cpu"] == 3000


@pytest.mark.parametrize(("resource", "text"), [("memory", "1.5Gi"), ("nvidia.com/gpu", "8"), ("cpu", "0.05")])
def test_amounts_are_shown_as_they_were_written(resource: str, text: str) -> None:
    assert format_quantity(resource, milli_value(text)) == f"{text} {resource}"
