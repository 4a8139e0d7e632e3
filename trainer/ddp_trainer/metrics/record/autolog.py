"""Metrics of a script that does not report any, collected by hooks into torch.

:func:`listen` installs the hooks. Steps come from torch's global optimizer hooks, and batches from wrappers around two
functions of its DataLoader, which has no hooks. The hooks change nothing in the script or in what it compiles, and a
forked process does not count. An error is logged once, and training continues.

The hooks are removed if the script reports its steps itself, through :mod:`ddp_trainer.metrics.attach` or the reference
trainer, since its own reports are more precise.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from ddp_trainer.common.time_classes import StartupPhase
from ddp_trainer.metrics.record import ddp_comm_sampler, recorder_factory
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.record.sampler import Watch
from ddp_trainer.metrics.record.step_detector import SampleCounter, StepBatch, StepDetector, size_of
from ddp_trainer.process import startup_times

_log: Final = logging.getLogger(__name__)

LEARNING_RATE_STEPS: Final = 8
"""Least number of steps between two readings of the learning rate."""
COUNTER: Final = "_ddp_sample_counter"
"""Name of the attribute of a loader's iterator that holds its counter, so that both end together."""


def listen(torch: Any, began: float) -> None:
    """Count the steps of this process from now on.

    It has no effect if metrics are off or the metrics file cannot be opened.

    Args:
        torch: The module.
        began: Unix time at which the program began.
    """
    startup_times.end_phase(StartupPhase.INTERPRETER, began)
    startup_times.STARTUP.torch_imported()
    recorder = recorder_factory.open_rank_recorder(os.environ, measures_waits=False)
    if not isinstance(recorder, MmapRankRecorder):
        return
    hooks = Hooks(torch, StepDetector(AutoRecorder(torch, recorder)))
    recorder_factory.stand_ins.append(hooks.uninstall)
    atexit.register(hooks.uninstall)
    os.register_at_fork(after_in_child=hooks.uninstall)
    hooks.install()


class AutoRecorder:
    """Listener that records the steps of a script in its metrics file."""

    def __init__(self, torch: Any, recorder: MmapRankRecorder) -> None:
        self._torch = torch
        self._recorder = recorder
        self._watch = recorder.watched_by or Watch(recorder)
        self._is_known = False
        self._inspect_at = 0
        self.record_step_number = recorder.record_step_number

    def record_first_batch(self) -> None:
        """Record the arrival of the first batch."""
        startup_times.end_phase(StartupPhase.FIRST_BATCH)

    def record_steps(self, optimizer: Any, batch: StepBatch) -> int:
        """Record steps, and return the number of steps after which the sampler needs the next report.

        Only some steps measure the parts of ``computed``. The next steps are divided in the same way.

        Args:
            optimizer: The optimizer; None if it no longer exists.
            batch: The steps.
        """
        recorder, watch = self._recorder, self._watch
        exposed = min(watch.exposed_seconds * batch.steps, batch.computed)
        recorder.record_steps(batch, (batch.computed - exposed) * watch.forward_share, exposed)
        if optimizer is not None and recorder.steps >= self._inspect_at:
            self._inspect_at = recorder.steps + LEARNING_RATE_STEPS
            self._inspect_optimizer(optimizer)
        return recorder.steps_before_sample

    def _inspect_optimizer(self, optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        rate = group.get("lr")
        if isinstance(rate, float | int):  # reading a tensor on a GPU would synchronize
            self._recorder.progress(learning_rate=rate)
        if not self._is_known:
            self._is_known = True
            self._record_identity(group["params"][0])

    def _record_identity(self, weight: Any) -> None:
        """Record rank, device and parallelism, from the weights of the optimizer and the process group."""
        dist = self._torch.distributed
        has_group = dist.is_available() and dist.is_initialized()
        self._recorder.identity(
            rank=dist.get_rank() if has_group else int(os.environ.get("RANK", "0")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=dist.get_world_size() if has_group else 1,
            backend=str(dist.get_backend()) if has_group else "none",
            device=str(weight.device),
        )
        parallelism = "ddp" if ddp_comm_sampler.models else "other" if has_group else "single"
        self._recorder.job(precision=str(weight.dtype).removeprefix("torch."), parallelism=parallelism)


class Hooks:
    """Hooks into torch, and their removal."""

    def __init__(self, torch: Any, detector: StepDetector) -> None:
        self._torch = torch
        self._detector = detector
        self._undo: list[Callable[[], None]] = []
        self._is_on = False

    def install(self) -> None:
        """Install the hooks. Functions that this torch lacks are skipped."""
        self._is_on = True
        for part in (self._optimizers, self._dataloader):
            try:
                part()
            except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
                _log.warning("metrics: %s of this torch cannot be seen (%r)", part.__name__.strip("_"), error)

    def uninstall(self) -> None:
        """Remove all hooks. A wrapper that other code has wrapped stays, without effect."""
        self._is_on = False
        try:
            self._detector.report()
        except Exception as error:  # noqa: BLE001 - see the module
            _log.warning("metrics: some steps are not counted (%r); training continues", error)
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _fail(self, error: Exception) -> None:
        self.uninstall()
        _log.warning("metrics: steps are no longer counted (%r); training continues", error)

    def _optimizers(self) -> None:
        optimizers = sys.modules["torch.optim.optimizer"]
        is_compiling: Callable[[], bool] = self._torch.compiler.is_compiling

        # Compiled code must not contain the hooks. There, the condition is a constant.
        def on_step(optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            if is_compiling():
                return None
            self._record(self._detector.begin_optimizer, optimizer)
            if callable(kwargs.get("closure")):
                return args, {**kwargs, "closure": self._timed(kwargs["closure"])}
            if len(args) > 1 and callable(args[1]):
                return (args[0], self._timed(args[1]), *args[2:]), kwargs
            return None

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                self._record(self._detector.end_optimizer, optimizer)

        self._undo.append(optimizers.register_optimizer_step_pre_hook(on_step).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(after_step).remove)

    def _timed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure of an optimizer, as Lightning always passes one, with its time recorded."""

        @functools.wraps(closure)
        def compute() -> Any:
            self._record(self._detector.begin_closure)
            loss = closure()
            self._record(self._detector.end_closure)
            return loss

        return compute

    def _record(self, record: Callable[..., None], *args: Any) -> None:
        if self._is_on:
            try:
                record(*args)
            except Exception as error:  # noqa: BLE001 - see the module
                self._fail(error)

    def _dataloader(self) -> None:
        dataloader = sys.modules["torch.utils.data.dataloader"]
        base = dataloader._BaseDataLoaderIter  # noqa: SLF001 - guarded by the caller
        streams = dataloader._DatasetKind.Iterable  # noqa: SLF001
        draw, fetch = base._next_index, base.__next__  # noqa: SLF001
        clock, record_fetch = self._detector.clock, self._detector.record_fetch
        gradients_are_on: Callable[[], bool] = self._torch.is_grad_enabled

        @functools.wraps(draw)
        def draw_indices(iterator: Any) -> Any:
            index = draw(iterator)
            if self._is_on:
                try:
                    counter = getattr(iterator, COUNTER, None)
                    sampler = iterator._sampler_iter  # noqa: SLF001
                    if counter is None or counter.sampler is not sampler:
                        counter = SampleCounter(sampler, is_stream=iterator._dataset_kind == streams)  # noqa: SLF001
                        setattr(iterator, COUNTER, counter)
                    counter.record_indices(index)
                except Exception as error:  # noqa: BLE001 - see the module
                    self._fail(error)
            return index

        @functools.wraps(fetch)
        def fetch_batch(iterator: Any) -> Any:
            begun = clock()
            batch = fetch(iterator)
            if self._is_on:
                try:
                    now, counter = clock(), getattr(iterator, COUNTER, None)
                    samples = size_of(batch) if counter is None else counter.count(batch)
                    record_fetch(begun, now, samples, is_training=gradients_are_on())
                except Exception as error:  # noqa: BLE001 - see the module
                    self._fail(error)
            return batch

        self._replace(base, "_next_index", draw_indices)
        self._replace(base, "__next__", fetch_batch)

    def _replace(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(undo)
