"""The goodput ledger: whatever happens to a run, its states add up to the time that passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from ddp_trainer.common.constants import File, RestartCause
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.checkpoint.progress_file import ProgressFile
from ddp_trainer.train.config.goodput_account import SIZE, Account, LauncherTimes
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker, HistoryState
from ddp_trainer.train.observability.step_timer import Phase, StepTimer
from tests.support.forked_ranks import run_ranks

FIRST = 1_700_000_000.0
LAUNCH, JOIN, START, LOAD, PREPARE = 2.0, 4.0, 8.0, 1.0, 0.5
"""Seconds from the launcher's start until it joins, until the group is formed, until a process looks for a state, has
it, and begins to train."""

ticks = some.integers(1, 64).map(lambda number: number / 4)
"""Seconds that a float holds exactly."""


class Told(NoopRankRecorder):
    """Keeps the last account."""

    seconds: Sequence[float] = ()
    lost_steps = 0
    lost_seconds = 0.0

    def account(self, account: JobAccount) -> None:
        self.seconds, self.lost_steps, self.lost_seconds = account.seconds, account.lost_steps, account.lost_seconds


@dataclass
class Job:
    """A run on a simulated clock, with the expected account."""

    directory: Path
    now: float = FIRST
    step: int = 0
    stored: tuple[int, HistoryState] | None = None
    launched: float = FIRST
    restarts: dict[str, int] = field(default_factory=dict)
    expected: dict[JobTime, float] = field(default_factory=lambda: dict.fromkeys(JobTime, 0.0))
    lost_steps: int = 0
    recorder: Told = field(default_factory=Told)
    steps_since: list[float] = field(default_factory=list)
    """Productive seconds of the steps that no checkpoint holds."""
    lost_seconds: float = 0.0

    def clock(self) -> float:
        return self.now

    def passes(self, state: JobTime, seconds: float) -> None:
        self.now += seconds
        self.expected[state] += seconds

    def process(self) -> None:
        """Start a process that finds only the files of the last one."""
        self.phases = StepTimer(self.clock)
        self.history = GoodputTracker(self.phases, self.clock)
        self.began = self.now
        if self.step > (saved_step := self.stored[0] if self.stored else 0):
            self.lost_steps += self.step - saved_step
            self.lost_seconds += sum(self.steps_since)
        self.step = saved_step
        self.steps_since.clear()

    def pod(self) -> None:
        self.launched = self.now
        self.passes(JobTime.STARTUP, LAUNCH)
        self.group(is_new=True)

    def group(self, *, is_new: bool) -> None:
        """Form a group; a new process resumes from the checkpoint, a surviving one from memory."""
        joined = self.now
        self.passes(JobTime.RENDEZVOUS, JOIN)
        moments = LauncherTimes(self.launched, joined, self.now)
        if is_new:
            self.process()
        self.passes(JobTime.STARTUP, START)
        self.history.begin_restore()
        env = Environment(moments=moments, restarts=dict(self.restarts))
        self.history.load(ProgressFile(self.directory, "run"), self.recorder, Group.single_rank(), self.began, env)
        loads = is_new and self.stored is not None
        self.passes(JobTime.CHECKPOINT_LOAD if loads else JobTime.INIT, LOAD)
        self.history.go_on_from(self.step)
        if loads and self.stored:
            self.history.load_state_dict(self.stored[1])
        self.history.end_restore(loaded=loads)
        self.passes(JobTime.INIT, PREPARE)
        self.phases.restart()
        self.history.begin()

    def train(self, waits: float, computes: float, *, saves: float = 0.0, evaluates: float = 0.0) -> None:
        """Train one step; evaluate and save after it on request."""
        self.passes(JobTime.DATA_WAIT, waits)
        self.phases.end_phase(Phase.DATA_WAIT)
        self.passes(JobTime.PRODUCTIVE, computes)
        self.phases.end_phase(Phase.FORWARD)
        self.step += 1
        self.steps_since.append(computes)
        self.history.record_step(self.step, self.history.time_report())
        self.phases.report(self.recorder, step=self.step, epoch=0, samples=1)
        if evaluates:
            self.passes(JobTime.EVAL, evaluates)
            self.phases.record_evaluation()
        if saves:
            self.stored = self.step, self.history.state_dict()
            self.steps_since.clear()
            self.passes(JobTime.CHECKPOINT_SAVE, saves)
            self.phases.end_phase(Phase.CHECKPOINT)

    def kill(self, seconds: float, cause: RestartCause = RestartCause.FAILURE) -> None:
        """Kill the process within a step; the pod stays."""
        state = {RestartCause.HANG: JobTime.HANG, RestartCause.RESIZE: JobTime.ELASTIC_RESIZE}
        self.passes(state.get(cause, JobTime.RESTART), seconds)
        self.count(cause)
        self.group(is_new=True)

    def lose_pod(self, seconds: float) -> None:
        self.passes(JobTime.SCHEDULING, seconds)
        self.pod()

    def suspend(self, seconds: float) -> None:
        self.train(0.25, 0.25, saves=0.5)
        self.history.save_account()
        self.passes(JobTime.SUSPENDED, seconds)
        self.pod()

    def resize(self, seconds: float) -> None:
        """Re-form the group with other peers; this process keeps its state."""
        self.passes(JobTime.ELASTIC_RESIZE, seconds)
        self.count(RestartCause.RESIZE)
        self.group(is_new=False)

    def count(self, cause: RestartCause) -> None:
        self.restarts[cause] = self.restarts.get(cause, 0) + 1

    def check(self) -> None:
        assert sum(self.recorder.seconds) == pytest.approx(self.now - FIRST, rel=1e-9)
        assert dict(zip(JobTime, self.recorder.seconds, strict=True)) == pytest.approx(self.expected, abs=1e-5)
        assert self.recorder.lost_steps == self.lost_steps
        assert self.recorder.lost_seconds == pytest.approx(self.lost_seconds, abs=1e-5)


def started(directory: Path) -> Job:
    job = Job(directory)
    job.pod()
    return job


MISFORTUNES: dict[str, Callable[[Job, float], None]] = {
    "kill": Job.kill,
    "hang": lambda job, seconds: job.kill(seconds, RestartCause.HANG),
    "lost_pod": Job.lose_pod,
    "suspend": Job.suspend,
    "resize": Job.resize,
    "resize_with_new_process": lambda job, seconds: job.kill(seconds, RestartCause.RESIZE),
}
STEP = some.tuples(ticks, ticks, some.sampled_from([0.0, 0.0, 1.25]), some.sampled_from([0.0, 2.5]))


@given(course=some.lists(some.tuples(some.lists(STEP, max_size=4), some.sampled_from(sorted(MISFORTUNES)), ticks)))
def test_whatever_happens_the_states_add_up_to_the_time_that_passed(
    tmp_path_factory: pytest.TempPathFactory, course: list[tuple[list[tuple[float, ...]], str, float]]
) -> None:
    job = started(tmp_path_factory.mktemp("checkpoints"))
    for steps, misfortune, seconds in course:
        for waits, computes, saves, evaluates in steps:
            job.train(waits, computes, saves=saves, evaluates=evaluates)
        job.train(0.25, 0.25)
        MISFORTUNES[misfortune](job, seconds)
        job.check()


def test_the_summary_has_the_goodput_without_suspension(tmp_path: Path) -> None:
    job = started(tmp_path)
    for number in range(3):
        job.train(0.25, 10.0, saves=0.5)
        job.train(0.25, 10.0)
        job.kill(float(number + 1))
    job.suspend(3600.0)
    job.resize(7.0)
    job.train(0.25, 10.0)
    job.history.finish()
    job.check()
    summary = job.history.summary()
    assert summary["goodput"] == pytest.approx((70.25 - 30.0) / (job.now - FIRST - 3600.0), abs=1e-4)
    assert summary["largest_badput"] == "startup"
    assert summary["spent"]["suspended"] == pytest.approx(3600.0, abs=1e-3)


def test_a_checkpoint_alone_brings_the_account_back(tmp_path: Path) -> None:
    job = started(tmp_path)
    job.train(0.25, 10.0, saves=0.5)
    before = job.now - 0.5
    (tmp_path / "PROGRESS").unlink()
    job.lose_pod(60.0)
    spent = dict(zip(JobTime, job.recorder.seconds, strict=True))
    assert sum(spent.values()) == pytest.approx(job.now - FIRST)
    assert spent[JobTime.PRODUCTIVE] == pytest.approx(10.0)
    assert spent[JobTime.SCHEDULING] == pytest.approx(job.launched - before)


def test_a_damaged_progress_file_loses_neither_time_nor_steps_that_a_checkpoint_knows_of(tmp_path: Path) -> None:
    job = started(tmp_path)
    job.train(0.25, 10.0, saves=0.5)
    job.train(0.25, 5.0)
    job.lose_pod(60.0)
    assert job.recorder.lost_steps == 1
    job.train(0.25, 10.0, saves=0.5)
    before = job.recorder.lost_seconds
    (tmp_path / "PROGRESS").write_bytes(b"torn")
    job.lose_pod(60.0)
    job.train(0.25, 1.0)
    job.train(0.25, 1.0)
    assert (job.recorder.lost_steps, job.recorder.lost_seconds) == (1, before)
    assert sum(job.recorder.seconds) == pytest.approx(job.now - FIRST, abs=1.5)


def test_steps_that_a_rollback_takes_back_are_lost_at_once(tmp_path: Path) -> None:
    job = started(tmp_path)
    job.train(0.25, 10.0, saves=0.5)
    job.train(0.25, 5.0)
    job.history.load_state_dict(job.stored[1])
    assert job.history.go_on_from(job.stored[0]) == 1
    assert (job.recorder.lost_steps, job.recorder.lost_seconds) == (1, pytest.approx(5.0))


def test_without_a_launcher_the_gap_is_a_restart_and_after_a_good_end_a_suspension(tmp_path: Path) -> None:
    now = [FIRST]
    recorder = Told()

    def run(*, leaves: bool) -> None:
        history = GoodputTracker(StepTimer(lambda: now[0]), lambda: now[0])
        history.load(ProgressFile(tmp_path, "run"), recorder, Group.single_rank(), now[0], Environment())
        history.begin_restore()
        history.end_restore(loaded=False)
        history.begin()
        now[0] += 1.0
        history.record_step(1, history.time_report())
        if leaves:
            history.save_account()

    for leaves in (False, True, False):
        run(leaves=leaves)
        now[0] += 16.0
    assert sum(recorder.seconds) == 2.0 + 16.0 + 16.0, "the last step is reported with the next one"
    spent = ProgressFile(tmp_path, "run").read().account
    assert (spent[JobTime.PRODUCTIVE], spent[JobTime.RESTART], spent[JobTime.SUSPENDED]) == (3.0, 16.0, 16.0)


def test_a_pod_that_came_later_knows_before_its_first_step_what_was_before_it(tmp_path: Path) -> None:
    job, run_dir = started(tmp_path), tmp_path / "run"
    run_dir.mkdir()
    for _ in range(4):
        job.train(0.25, 0.75)
    job.history.save_account()
    left = job.now
    env = Environment(moments=LauncherTimes(left + 60.0, left + 61.0, left + 62.0), run_dir=run_dir)
    recorder = Told()
    later = GoodputTracker(StepTimer(job.clock), job.clock)
    later.load(ProgressFile(tmp_path, "run"), recorder, Group.single_rank(), left + 63.0, env)
    account = JobAccount.from_json((run_dir / File.ACCOUNT).read_text())
    assert account.started == FIRST
    assert account.until == pytest.approx(left + 60.0)
    assert account.seconds_by_state[JobTime.PRODUCTIVE] == 3.0
    assert account.seconds_by_state[JobTime.SUSPENDED] == pytest.approx(60.0)
    assert not recorder.seconds, "a metric that another rank may have to take back is none yet"


def test_a_new_run_leaves_nothing_of_before(tmp_path: Path) -> None:
    history = GoodputTracker(StepTimer(lambda: FIRST), lambda: FIRST)
    history.load(ProgressFile(tmp_path, "run"), Told(), Group.single_rank(), FIRST, Environment(run_dir=tmp_path))
    assert not (tmp_path / File.ACCOUNT).exists()


def test_a_clock_that_is_set_back_takes_nothing_back() -> None:
    account = Account()
    account.begin(FIRST)
    account.work(FIRST + 10.0, {JobTime.DATA_WAIT: 4.0})
    account.work(FIRST + 5.0, {JobTime.DATA_WAIT: 1.0})
    account.add_time(JobTime.RESTART, FIRST + 9.0)
    assert (account[JobTime.PRODUCTIVE], account[JobTime.DATA_WAIT], account.elapsed) == (6.0, 4.0, 10.0)


def test_an_account_is_the_same_after_it_was_packed_and_a_torn_one_is_blank() -> None:
    account = Account(until=FIRST, lost=1.5, has_left=True, restarts=[1, 2, 3, 4, 5], seconds=[0.5] * len(JobTime))
    assert Account.unpack(account.pack()) == account
    assert len(account.pack()) == SIZE
    assert Account.unpack(account.pack()[:-1]) == Account()


@pytest.mark.parametrize("damage", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("place", [0, SIZE // 8 - 1])
def test_a_damaged_account_is_blank_so_that_the_checkpoints_own_is_taken(damage: float, place: int) -> None:
    numbers = Account(until=FIRST, seconds=[0.5] * len(JobTime)).to_list()
    numbers[place] = damage
    assert Account.from_list(numbers) == Account()


def test_all_ranks_hold_the_account_of_rank_0_and_no_counter_falls_when_another_takes_its_place() -> None:
    """Rank 1 measures other times, and becomes rank 0 of the next group."""

    def train(group: Group) -> object:
        now, recorder = FIRST + 4.0, Told()
        phases = StepTimer(lambda: now)
        history = GoodputTracker(phases, lambda: now)

        def form(group: Group, *moments: float) -> None:
            history.begin_restore()
            history.load(None, recorder, group, now, Environment(moments=LauncherTimes(*moments)))
            history.end_restore(loaded=False)
            history.begin()

        form(group, FIRST, FIRST + 3.0 * group.rank, FIRST + 4.0)
        for step in range(1, 4):
            now += 10.0
            phases.end_phase((Phase.DATA_WAIT, Phase.FORWARD)[group.rank])
            history.record_step(step, group.sum(torch.tensor(history.time_report(), dtype=torch.float64)).tolist())
        account, before = history._account, recorder.seconds
        if group.rank == 1:
            form(Group.single_rank(), FIRST, now, now)
        return account, before, recorder.seconds, now

    (account, before, *_), (same, _, after, now) = run_ranks(2, train)
    assert account == same
    assert account[JobTime.DATA_WAIT] == 30.0
    assert all(later >= earlier for later, earlier in zip(after, before, strict=True))
    assert sum(after) == now - FIRST
