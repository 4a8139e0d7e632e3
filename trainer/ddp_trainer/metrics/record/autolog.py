"""Metrics of a script that does not report any, collected by hooks into torch.

:func:`listen` installs the hooks. Optimizer steps come from torch's global optimizer hooks; batches, backward passes
and new DDP models from wrappers around torch's functions. The hooks change nothing in the script or in what it
compiles, and a forked process does not count. An error is logged once, and training continues.

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
from ddp_trainer.metrics.record.batched_steps import StepBatchResult, StepBudget
from ddp_trainer.metrics.record.rank_recorder import BoardRankRecorder
from ddp_trainer.metrics.record.sample_counter import get_sample_counter
from ddp_trainer.metrics.record.sampler import Watch
from ddp_trainer.metrics.record.step_detector import Timeline
from ddp_trainer.process import startup_times

_log: Final = logging.getLogger(__name__)

LOOK_AT_RATE: Final = 8
"""Steps between two readings of the learning rate."""


def listen(torch: Any, began: float) -> None:
    """Count the steps of this process from now on.

    It has no effect if metrics are off or the board cannot be opened.

    Args:
        torch: The module.
        began: Unix time at which the program began.
    """
    startup_times.reached(StartupPhase.INTERPRETER, began)
    startup_times.STARTUP.torch_imported()
    recorder = recorder_factory.open_rank_recorder(os.environ, waits_are_told=False)
    if not isinstance(recorder, BoardRankRecorder):
        return
    hooks = Hooks(torch, Timeline(AutoRecorder(torch, recorder)))
    recorder_factory.stand_ins.append(hooks.uninstall)
    atexit.register(hooks.uninstall)
    os.register_at_fork(after_in_child=hooks.uninstall)
    hooks.install()


class AutoRecorder:
    """Listener that records the steps of a script on its board."""

    def __init__(self, torch: Any, recorder: BoardRankRecorder) -> None:
        self._torch = torch
        self._recorder = recorder
        self._watch = recorder.watched_by or Watch(recorder)
        self._is_known = False
        self._looked_at = -LOOK_AT_RATE

    def record_steps(self, optimizer: Any, stride: StepBatchResult) -> None:
        """Record one step or a batch of short ones. ``optimizer`` is None if it no longer exists."""
        # Only some steps measure the wait for gradients. The next steps reuse that time.
        self._recorder.record_steps(stride, min(self._watch.exposed_seconds * stride.steps, stride.backward))
        if optimizer is not None and self._recorder.steps >= self._looked_at + LOOK_AT_RATE:
            self._inspect_optimizer(optimizer)

    def step_budget(self) -> StepBudget:
        """Return the budget of the next stride."""
        recorder = self._recorder
        return StepBudget(recorder.steps, recorder.steps_before_sample, recorder.reach)

    def _inspect_optimizer(self, optimizer: Any) -> None:
        self._looked_at = self._recorder.steps
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

    def __init__(self, torch: Any, timeline: Timeline) -> None:
        self._torch = torch
        self._timeline = timeline
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._undo: list[Callable[[], None]] = []
        self._in_backward = False
        self.is_on = False

    def install(self) -> None:
        """Install the hooks. Functions that this torch lacks are skipped."""
        self.is_on = True
        for part in (self._optimizers, self._dataloader, self._backward_passes, self._process_group):
            try:
                part()
            except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
                _log.warning("metrics: %s of this torch cannot be seen (%r)", part.__name__.strip("_"), error)

    def uninstall(self) -> None:
        """Remove all hooks that no other code has wrapped."""
        self.is_on = False
        self._pause()
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _pause(self) -> None:
        try:
            self._timeline.pause()
        except Exception as error:  # noqa: BLE001 - see the module
            _log.warning("metrics: some steps are not counted (%r); training continues", error)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Return ``hook`` without effect once the hooks are removed. An error in it removes them."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            if self.is_on:
                try:
                    hook(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - see the module
                    self.uninstall()
                    _log.warning("metrics: steps are no longer counted (%r); training continues", error)

        return guarded

    def _patch(self, owner: Any, name: str) -> Patch:
        detour = Patch(owner, name)
        self._undo.append(detour.unset)
        return detour

    def _optimizers(self) -> None:
        optimizers = sys.modules["torch.optim.optimizer"]
        stride = self._timeline.stride

        move = self._guarded(self._timeline.move)

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            # Compiled code must not contain the hook. There, this condition is a constant.
            if not self._is_compiling() and not stride.is_on:
                move(optimizer)

        stepped = stride.make_step_hook(self._is_compiling, self._pause, self._guarded(self._timeline.moved))
        self._undo.append(optimizers.register_optimizer_step_pre_hook(before).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(stepped).remove)

    def _dataloader(self) -> None:
        dataloader = sys.modules["torch.utils.data.dataloader"]
        base = dataloader._BaseDataLoaderIter  # noqa: SLF001 - guarded by the caller
        streams = dataloader._DatasetKind.Iterable  # noqa: SLF001
        indices, batches = self._patch(base, "_next_index"), self._patch(base, "__next__")
        timeline, gradients_are_on = self._timeline, self._torch.is_grad_enabled

        @self._guarded
        def record_indices(iterator: Any, index: Any) -> None:
            get_sample_counter(iterator).record_indices(iterator._sampler_iter, index)  # noqa: SLF001

        @self._guarded
        def on_batch(iterator: Any, batch: Any, begun: float) -> None:
            intake = get_sample_counter(iterator)
            intake.record_batch(batch, is_stream=iterator._dataset_kind == streams)  # noqa: SLF001
            is_training = gradients_are_on()
            timeline.record_fetch(begun, intake, is_training=is_training)
            if is_training and not timeline.stride.is_on:
                startup_times.reached(StartupPhase.FIRST_BATCH)

        def fetch_batch(iterator: Any) -> Any:
            begun = timeline.clock()
            try:
                batch = batches.inner(iterator)
            except StopIteration:
                if self.is_on:
                    get_sample_counter(iterator).ended()
                raise
            on_batch(iterator, batch, begun)
            return batch

        indices.by(timeline.stride.wrap_draw(indices.inner, record_indices))
        batches.by(timeline.stride.wrap_fetch(batches.inner, gradients_are_on, fetch_batch, on_batch))

    def _backward_passes(self) -> None:
        passes = self._patch(self._torch.autograd, "backward")
        timeline = self._timeline

        def backward(*args: Any, **kwargs: Any) -> Any:
            # Checkpointed layers start a nested backward pass.
            if self._is_compiling() or self._in_backward or timeline.stride.is_on or not self.is_on:
                return passes.inner(*args, **kwargs)
            self._in_backward = True
            timeline.backward()
            try:
                return passes.inner(*args, **kwargs)
            finally:
                self._in_backward = False
                timeline.backward_done()

        passes.by(backward)
        timeline.looks_away, timeline.looks_again = passes.unset, passes.set

    def _process_group(self) -> None:
        """Report when the script joins its first process group, and when it has."""
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        meets, joined = self._patch(c10d, "rendezvous"), self._patch(c10d, "_update_default_pg")

        def rendezvous(*args: Any, **kwargs: Any) -> Any:
            startup_times.reached(StartupPhase.IMPORTS)
            return meets.inner(*args, **kwargs)

        def update(group: Any) -> None:
            joined.inner(group)
            startup_times.reached(StartupPhase.IMPORTS)
            startup_times.reached(StartupPhase.RENDEZVOUS)

        meets.by(rendezvous)
        joined.by(update)


class Patch:
    """Replacement of ``owner.name`` by a function that calls the original as :attr:`inner`."""

    __slots__ = ("_is_set", "_name", "_ours", "_owner", "inner")

    def __init__(self, owner: Any, name: str) -> None:
        self.inner: Callable[..., Any] = getattr(owner, name)
        self._owner = owner
        self._name = name
        self._ours: Callable[..., Any] = self.inner
        self._is_set = False

    def by(self, function: Callable[..., Any]) -> None:
        """Install ``function`` as the replacement."""
        self._ours = functools.wraps(self.inner)(function)
        self.set()

    def set(self) -> None:
        """Install the replacement, unless it is already in place or wrapped by what is in place."""
        if not self._is_set:
            self._is_set = True
            there = getattr(self._owner, self._name)
            if there is not self._ours:
                self.inner = there
                setattr(self._owner, self._name, self._ours)

    def unset(self) -> None:
        """Restore the original. If other code has wrapped the replacement, it stays below that wrapper."""
        if self._is_set and getattr(self._owner, self._name) is self._ours:
            self._is_set = False
            setattr(self._owner, self._name, self.inner)
