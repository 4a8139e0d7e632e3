"""Classes of time: phases of a job's start and of a step, waits in a step, classes of a job's time, and sections of a
worker's program.

The launcher, the trainer and the plugin share them. Standard library only.
"""

from enum import StrEnum
from typing import Final


class StartupPhase(StrEnum):
    """Phases of a job's start, in order. They add up to the time from the submission to the first step."""

    QUEUE = "queue"
    """From the submission to the creation of the pod: requests, Kueue's queue, the operator."""
    SCHEDULE = "schedule"
    """Until the pod has a node."""
    PULL = "pull"
    """Pull of the images."""
    CONTAINER = "container"
    """Volumes, network, init containers, and the start of the container."""
    INTERPRETER = "interpreter"
    """Start of Python, of the launcher and of the worker, up to the first line of the program."""
    IMPORTS = "imports"
    """Imports and other code of the program before it joins the process group."""
    RENDEZVOUS = "rendezvous"
    """Wait for the other nodes, and setup of the process group."""
    FIRST_BATCH = "first_batch"
    """Preparation of model and data until the first batch is there, with the load of a checkpoint."""
    COMPILE = "compile"
    """Time of ``torch.compile`` before the first step has ended."""
    FIRST_STEP = "first_step"
    """The first step, without the time of ``torch.compile``."""


IN_POD: Final = tuple(StartupPhase)[tuple(StartupPhase).index(StartupPhase.INTERPRETER) :]
"""Phases of a start that the pod itself measures. The plugin derives those before from Kubernetes objects."""


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
