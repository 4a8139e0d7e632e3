"""A real Prometheus and its linter against a real aggregator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env, GroupState
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.metrics import attach
from ddp_trainer.process.recorder import RendezvousResult
from tests import fake_nvml
from tests.support.metrics_processes import Rank, aggregator
from tests.support.programs import captured
from tests.support.rule_files import promtool, written

ROOT = Path(__file__).parents[3]


def report_everything(directory: Path) -> None:
    """Let the launcher and local rank 0 report all there is, so that no family is missing from the scrape."""
    agent = attach.agent_recorder(directory, {})
    agent.state(GroupState.RUNNING)
    agent.rendezvous_completed(RendezvousResult(1.5, 1, size=4, nodes=1, nodes_desired=1, restarts_left=3))
    rank = attach.rank_recorder({Env.METRICS_DIR: str(directory), "LOCAL_WORLD_SIZE": "4"})
    rank.identity(rank=0, local_rank=0, world_size=4, backend="gloo", device="cpu")
    rank.put(Metric.STEPS_PLANNED, 100)
    rank.progress(0.5, 0.1)
    rank.record_evaluation(0.4, 0.97)
    rank.checkpoint_saved(1, 0.5, 0.1, 1000)
    rank.put(Metric.CHECKPOINT_INTERVAL, 30.0)
    rank.account(JobAccount(1000.0, [1.0] * len(JobTime), 2, 0.5))


def test_promtool_finds_nothing_to_say_about_a_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed, so the metrics cannot be linted.")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(fake_nvml.compiled(tmp_path)).parent))
    monkeypatch.setenv(fake_nvml.ANSWERS, str(tmp_path / "answers"))
    fake_nvml.answers(tmp_path / "answers", fake_nvml.HEALTHY)
    fake_nvml.rank_of_gpu(tmp_path, 2, fake_nvml.HEALTHY["nvmlDeviceGetUUID"])
    with aggregator(tmp_path) as running, Rank(tmp_path, 1) as rank:
        report_everything(tmp_path)
        rank.tell("step 1")
        text = running.scrape_until(lambda scrape: scrape.value("ddp_gpu_throttled", reason="power_cap") == 0).text
    done = captured(["promtool", "check", "metrics"], input=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_page_joins_dcgm_with_ranks_by_uuid(tmp_path: Path) -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8").partition("\n## GPUs\n")[2]
    ranks = {"0": "GPU-5d6e", "1": "GPU-1a2b", "2": "GPU-1a2b", "3": ""}
    job = 'namespace="training",ddp_job="digits"'
    infos = {f'ddp_rank_info{{{job},rank="{rank}",gpu_uuid="{uuid}"}}': "1x5" for rank, uuid in ranks.items()}
    exporter = 'namespace="dcgm",pod="dcgm-exporter-x"'
    celsius = {
        f'DCGM_FI_DEV_GPU_TEMP{{{exporter},UUID="{uuid}"}}': f"{value}x5"
        for uuid, value in (("GPU-5d6e", 61), ("GPU-1a2b", 70), ("GPU-free", 30))
    }
    expected = [
        {"labels": f'{{{job},rank="{rank}"}}', "value": value} for rank, value in (("0", 61), ("1", 70), ("2", 70))
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in (infos | celsius).items()],
        "promql_expr_test": [
            {"expr": page.split("```")[1].removeprefix("promql"), "eval_time": "3m", "exp_samples": expected}
        ],
    }
    done = promtool("test", "rules", written(tmp_path, "test.json", {"tests": [test]}))
    assert done.code == 0, done.out + done.err
