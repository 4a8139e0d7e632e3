"""Classes of time: phases of a step, waits in a step, classes of a job's time, and sections of a worker's program.

The launcher, the trainer and the plugin share them. Standard library only.
"""

from enum import StrEnum


class Phase(StrEnum):
    """Phases of a training step. Over a step they add up to its wall time."""

    DATA_WAIT = "data_wait"
    HOST_TO_DEVICE = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMM_EXPOSED = "comm_exposed"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


class Wait(StrEnum):
    """Reason why a rank that holds a part of a model waits in a step.

    On a CPU this time belongs to the phase ``comm_exposed``.
    """

    ALL_GATHER = "all_gather"
    """Gathering of weights that other ranks hold."""
    REDUCE_SCATTER = "reduce_scatter"
    """Summation of gradients over ranks, including the ranks of a layout's replicas."""
    STAGE = "stage"
    """Input from, or output to, another stage of the pipeline: the bubble."""


class JobTime(StrEnum):
    """Classes of a job's wall-clock time. They add up to the time since the job first started.

    The classes are those of Google's ML goodput measurement, plus the time of a hang.
    """

    PRODUCTIVE = "productive"
    """Committed steps, without the time of the classes below. A separate counter holds the part that was lost later."""
    SCHEDULING = "scheduling"
    """No pod: from an unplanned end of a pod until a launcher runs again."""
    SUSPENDED = "suspended"
    """No pod: from a requested stop of all pods, which saved, until a launcher runs again."""
    STARTUP = "startup"
    """Start of launcher and workers: imports, devices, the process group."""
    INIT = "init"
    """Preparation of model, data and strategy for the first step."""
    RENDEZVOUS = "rendezvous"
    CHECKPOINT_LOAD = "checkpoint_load"
    DATA_WAIT = "data_wait"
    CHECKPOINT_SAVE = "checkpoint_save"
    """Only the time for which saving blocks training."""
    EVAL = "eval"
    HANG = "hang"
    """Time from the last step before a hang until the launcher has stopped the group."""
    RESTART = "restart"
    """Time from the last step before a failure until the agents join the next rendezvous."""
    ELASTIC_RESIZE = "elastic_resize"
    """Time from the last step before nodes joined or left until the agents join the next rendezvous."""
    OTHER = "other"


class Section(StrEnum):
    """Sections of a worker's program, for hang detection. Each section has its own time limit or none."""

    SETUP = "setup"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    ASIDE = "aside"
    """The rank has no place in the layout, and no other rank waits for it."""
