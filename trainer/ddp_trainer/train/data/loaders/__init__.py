"""How samples reach the step: from a data set in this process, from worker processes, or from a stream.

No feed has a cursor. A step asks for the samples of its shards by number, and the number moves only when a step is
committed; what a feed has read ahead is thrown away by a restart and asked for again.
"""
