"""Training without torch's compiler, which stays usable."""

from __future__ import annotations

import sys

from tests.support.programs import captured


def run(program: str) -> None:
    done = captured([sys.executable, "-c", program], timeout=120)
    assert done.returncode == 0, done.stderr


FIRST_STEP = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="1")
import torch, torch.distributed as dist
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.parallel.factory import build
from ddp_trainer.train.parallel.strategy import Ddp, StrategyArguments
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = Group(0, 2, "gloo", torch.device("cpu"))  # says two, so that the real DDP is built
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
optimization = OptimizerWrapper.build(object(), model, Config(clip_norm=1.0), 10)
plan = BatchPlan(samples=6, global_batch=6, batch_slices=2, seed=0, epochs=3)
losses = lambda model, batch: model(batch).sum(1)
strategy = build(StrategyArguments(model=model, losses=losses, group=group, plan=plan, config=Config()))
for step in range(3):
    optimization.zero_grad()
    strategy.begin(step)
    with strategy.no_sync():
        strategy.backward(strategy.forward(torch.ones(3, 2)), 6)
    if step:
        strategy.backward(strategy.forward(torch.ones(3, 2)), 6)
    strategy.reduce(6)
    assert optimization.check_grads() == 0
    optimization.step(step)
optimization.load_state_dict(optimization.state_dict())
dist.destroy_process_group()
assert isinstance(strategy, Ddp)
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules, "the compiler was imported"
compiled = torch.compile(model, backend="eager")
assert compiled(torch.ones(1, 2)).shape == (1, 2)
assert sys.modules["torch._dynamo"].__file__
"""


def test_a_first_step_does_not_import_the_compiler_and_leaves_it_usable() -> None:
    # Fails if a new version of torch uses more of its compiler than the stub has.
    run(FIRST_STEP)


IMPORT_ELSEWHERE = """
import sys, threading
import torch
from ddp_trainer.train.utils.dynamo_stub import uncompiled

def compile_something():
    import torch._dynamo.eval_frame
    from torch._dynamo import config, utils
    config.cache_size_limit = config.cache_size_limit
    function = torch.compile(lambda given: given + 1, backend="eager")
    found.extend([torch._dynamo.disable.__module__, utils.__file__, function(torch.ones(1)).item()])

weight, found = torch.nn.Parameter(torch.ones(1)), []
with uncompiled():
    optimizer = torch.optim.SGD([weight])
    optimizer.step()
    assert "torch._dynamo" not in sys.modules
    thread = threading.Thread(target=compile_something)
    thread.start()
    thread.join()
    optimizer.step()
assert found[0] == "torch._dynamo.decorators" and found[1] and found[2] == 2.0, found
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.__file__
"""


def test_another_thread_imports_the_compiler_meanwhile_and_gets_the_real_one() -> None:
    run(IMPORT_ELSEWHERE)


DRAW_ON_META = """
import sys
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.loop.run_context import draw
from tests.local.workloads.train_layouts import Numbers
model = draw(Config(), Numbers(), None)
assert {weight.device.type for weight in model.parameters()} == {"meta"}
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
"""


def test_a_model_whose_weights_are_drawn_later_is_built_without_the_compiler() -> None:
    run(DRAW_ON_META)
