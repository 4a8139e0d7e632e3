"""Where the trainer has its layout from, and which it refuses."""

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train.api import with_defaults
from ddp_trainer.train.cli import parse
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig


def test_the_jobs_layout_is_taken_where_no_flag_gives_one() -> None:
    env = Environment.from_environ({Env.PARALLEL: "replicate=1:4"})
    assert with_defaults(Config(), env).parallel == LayoutRange.parse("replicate=1:4")
    assert with_defaults(parse(["--parallel", "replicate=2"]), env).parallel == LayoutRange.parse("replicate=2")
    assert with_defaults(Config(), Environment.from_environ({})).parallel is None


def test_a_variable_that_holds_no_layout_is_a_sentence() -> None:
    with pytest.raises(
        BadConfig, match="DDP_PARALLEL is 'ddp=4': 'ddp' is not a dimension of a layout; use replicate,"
    ):
        Environment.from_environ({Env.PARALLEL: "ddp=4"})


def test_a_flag_that_holds_no_layout_is_a_sentence() -> None:
    with pytest.raises(BadConfig, match="--parallel is 'shard=0': shard=0 is not a size of a dimension"):
        parse(["--parallel", "shard=0"])
