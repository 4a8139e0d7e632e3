"""How samples reach the step: from a data set in this process, from worker processes, or from a stream.

No feed has a cursor. A step asks for the samples of its shards by number, and the number moves only when a step is
committed; what a feed has read ahead is thrown away by a restart and asked for again.
"""

from __future__ import annotations

from ddp_trainer.train.feeds.choice import known_count, make_feed, sample_count
from ddp_trainer.train.feeds.feed import Feed
from ddp_trainer.train.feeds.fetched import Fetched, Request
from ddp_trainer.train.feeds.skips import Skips

__all__ = ["Feed", "Fetched", "Request", "Skips", "known_count", "make_feed", "sample_count"]
