"""Consistency rules between the fields of a job, its queue and gang included, and warnings about doubtful values.

Plain-text secrets are detected by the name or form of a variable, and among the arguments. Everyone who may read the
job, its pods or its annotations could read such a secret. The warnings never contain the value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from ddp_trainer.common.constants import GROUP, NAME_LENGTH, Env
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec import fabric, layout
from kubectl_ddp.spec.launcher_command import LAUNCHERS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.torchrun import SWITCHES, torchrun_has_the_keys
from kubectl_ddp.spec.trainer_arguments import invalid_options, last_flag_value, runs_the_trainer
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values import pod
from kubectl_ddp.values.parsers import Egress
from kubectl_ddp.values.pod import GPU_PRODUCT, Placement
from kubectl_ddp.values.program import Command, Gang, Module, QueueResize, Script

VARIABLE: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)S?(_ID)?$", re.IGNORECASE
)
"""Pattern of variable names that denote a secret."""
FLAG: Final = re.compile(
    r"(?i)^--?([a-z0-9]+[-_])*(password|passwd|passphrase|secret|api[-_]?key|access[-_]?key|private[-_]?key|"
    r"(hf|hub|auth|access|api|bearer|github|gitlab|wandb|refresh)[-_]?token)$"
)
"""Pattern of flags that take a secret. A tokenizer's ``--pad-token`` does not match."""
FORM: Final = re.compile(
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bhf_\w{20,}"
    r"|\bsk-[\w-]{20,}|\bxox[abps]-[\w-]{16,}|\beyJ[\w-]{10,}\.eyJ[\w-]{5,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)|://[^/\s:@]*:[^/\s:@]+@"
)
"""Regular expression, in the common syntax of Python and Go, for tokens of common services, private keys and
passwords in URLs. A match must not go into an object of a job, nor into a pod's termination message, which events
repeat."""
HARMLESS: Final = re.compile(r"(?i)\d{1,9}|true|false|none|null|/[\w./-]*|")
"""Pattern of values that are never secrets, whatever the name: MAX_TOKENS is a number, and HF_TOKEN_PATH a file."""
AS_VARIABLE: Final = "--secret-env NAME=SECRET:KEY"


def in_clear(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each secret in plain text."""
    for name, value in spec.env.items():
        if FORM.search(value) or (VARIABLE.search(name) and not HARMLESS.fullmatch(value)):
            yield warning(
                f"The value of {name} looks like a secret, and everyone who may read the job can read it.",
                f"Keep it in a Secret: --secret-env {name}=SECRET:KEY.",
            )
    words = [*(spec.program.words if isinstance(spec.program, Command) else ()), *spec.args]
    for where in dict.fromkeys(_secrets_in_args(words)):
        yield warning(
            f"{where} looks like a secret, and everyone who may read the job can read it.",
            f"Keep it in a Secret, give it to the pods with {AS_VARIABLE}, and read the variable.",
        )


def _secrets_in_args(words: list[str]) -> Iterator[str]:
    for number, (before, word) in enumerate(itertools.pairwise(["", *words]), start=1):
        flag, equals, value = word.partition("=")
        if equals and FLAG.match(flag) and not HARMLESS.fullmatch(value):
            yield f"The value of {flag}"
        elif FLAG.match(before) and not word.startswith("-") and not HARMLESS.fullmatch(word):
            yield f"The value of {before}"
        elif FORM.search(word):
            yield f"Word {number} of the program"


OF_KUEUE: Final = frozenset({Gang.NONE, Gang.AUTO, Gang.KUEUE, Gang.NATIVE})
"""Gangs with which a queue is one of Kueue's; Volcano and KAI have their own queues."""
SCHEDULERS: Final = {
    Gang.VOLCANO: "volcano",
    Gang.SCHEDULER_PLUGINS: "scheduler-plugins-scheduler",
    Gang.KAI: "kai-scheduler",
}
"""Default names of these schedulers."""


def the_gang_has_a_queue(spec: JobSpec) -> None:
    """Check that a job of Kueue has a queue, and that a job of the scheduler plugins has none."""
    if spec.gang is Gang.KUEUE and spec.queue is None:
        raise UsageError("Kueue starts nothing that is in no queue.", hint="Add --queue NAME, a LocalQueue.")
    if spec.gang is Gang.SCHEDULER_PLUGINS and spec.queue is not None:
        raise UsageError(
            f"The scheduler plugins have no queues, and the queue is '{spec.queue}'.", hint="Leave one of them out."
        )


def the_priority_has_a_queue(spec: JobSpec) -> None:
    """Check that a queue priority comes with a queue of Kueue, since only Kueue supports it."""
    if spec.queue_priority is not None and not is_kueue_managed(spec):
        raise UsageError(
            f"The queue priority '{spec.queue_priority}' is a class of Kueue's, and the job is in no queue of Kueue's.",
            hint="Add --queue NAME, a LocalQueue, or use --priority, which is that of the pods.",
        )


def the_queue_can_resize(spec: JobSpec) -> None:
    """Check that Kueue can resize the job while it runs, if that is requested."""
    if spec.queue_resize is not QueueResize.RUNNING:
        return
    reasons = {
        "it is in no queue of Kueue's": not is_kueue_managed(spec),
        f"its engine is '{spec.engine}', and Kueue resizes only --engine {Engine.JOB}": spec.engine is not Engine.JOB,
        f"its size is fixed by --nnodes {spec.nnodes}": not spec.nnodes.is_elastic,
        "Kueue resizes no job whose topology it decides (--gang kueue)": spec.gang is Gang.KUEUE,
    }
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise UsageError(
            f"The job cannot be resized while it runs in a queue: {why}.",
            hint=f"Leave out --queue-resize {QueueResize.RUNNING}, or change that.",
        )


def starting_pod_count(spec: JobSpec) -> int:
    """Return the number of worker pods with which the job is created. Spares exist beside the maximum of nodes only."""
    return spec.nnodes.minimum if spec.queue_resize is QueueResize.RUNNING else spec.largest_pod_count


def is_kueue_managed(spec: JobSpec) -> bool:
    """Return True if Kueue decides when the job runs."""
    return spec.queue is not None and spec.gang in OF_KUEUE


STORE_POD_SUFFIX: Final = "-store-00000"
"""Suffix of the store's pod name from the Job controller: a dash and five characters after the Job's name."""

LEAST_GRACE_SECONDS: Final = 5

TORCHRUN_NAMES: Final = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
RESERVED_PREFIXES: Final = ("PET_", "TORCHELASTIC_", "DDP_")
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
"""Field of affinity whose terms must hold."""
RESERVED_LABELS: Final = (
    f"{GROUP}/", "batch.kubernetes.io/", "jobset.sigs.k8s.io/", "training.kubeflow.org/", "trainer.kubeflow.org/",
    "app.kubernetes.io/managed-by",
)  # fmt: skip
"""Prefixes of labels and annotations that the job or an operator sets."""
LAUNCHER_SETTINGS: Final = frozenset(
    {
        "PET_SIGNALS_TO_HANDLE", "PET_PASS_LOCAL_RANK", "PET_SHUTDOWN_TIMEOUT", "PET_LOG_DIR",
        "PET_VIRTUAL_LOCAL_RANK", "PET_REDIRECTS", "PET_LOCAL_RANKS_FILTER",
    }
)  # fmt: skip
"""Flags of the launcher that no key of a job has."""
KEYS_OF_SETTINGS: Final = {
    "PET_NNODES": "nnodes", "PET_NPROC_PER_NODE": "nproc", "PET_MAX_RESTARTS": "maxRestarts",
    "PET_ROLE": "name", "PET_RDZV_ID": "name",
}  # fmt: skip
"""Flags of the launcher that follow from a key of the job."""


def one_process_has_one_slice(spec: JobSpec) -> None:
    """Check that a node with a MIG slice has one process, since a process can use only one slice."""
    if spec.mig is not None and (spec.gpus > 1 or spec.nproc > 1):
        what, count = ("nproc", spec.nproc) if spec.nproc > 1 else ("gpus", spec.gpus)
        raise UsageError(
            f"A node of MIG slices has one process and one slice, and {what} is {count}: NCCL before 2.30 does not "
            "join slices of one GPU.",
            hint=f"Omit {what} and request more nodes, or whole GPUs without mig.",
        )


def gpu_type_is_of_a_gpu(spec: JobSpec) -> None:
    """Check that a GPU type comes with GPUs and does not contradict the node selector."""
    if spec.gpu_type is None:
        return
    if not spec.gpus:
        raise UsageError(f"gpuType is '{spec.gpu_type}', and the job requests no GPU.", hint="Add gpus, or leave it.")
    if spec.node_selector.get(GPU_PRODUCT, spec.gpu_type) != spec.gpu_type:
        raise UsageError(
            f"gpuType says '{spec.gpu_type}', and nodeSelector says '{spec.node_selector[GPU_PRODUCT]}'.",
            hint="Keep one of them.",
        )


def validate_unique_topology(spec: JobSpec) -> None:
    """Check that each label and kind occurs once, as Kubernetes requires."""
    seen: set[tuple[Placement, str]] = set()
    for wish in spec.topology:
        if (wish.placement, wish.key) in seen:
            raise UsageError(f"The topology '{wish.placement}={wish.key}' is given twice.", hint="Keep one of them.")
        seen.add((wish.placement, wish.key))


def slices_of_one_gpu(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning if two nodes may get two slices of the same GPU."""
    if spec.mig is not None and spec.nnodes.maximum > 1:
        yield warning(
            f"Nodes of MIG slices ({spec.mig}) may share one GPU, and NCCL before 2.30 refuses two ranks on one.",
            "Use one node, whole GPUs, or gloo.",
        )


def checked(spec: JobSpec) -> JobSpec:
    """Return ``spec``. Raises UsageError for the first rule that it violates."""
    for rule in RULES:
        rule(spec)
    return spec


def warnings(spec: JobSpec) -> list[Finding]:
    """Return warnings about values of ``spec`` that are valid but probably unintended."""
    return [found for doubt in DOUBTS for found in doubt(spec)]


def longest_suffix(pod_count: int) -> int:
    """Return the maximum length of suffixes that any engine adds to the job's name."""
    workers = (engine.pod_suffix.format(index=pod_count - 1) for engine in ENGINES.values())
    return max(map(len, (STORE_POD_SUFFIX, *workers)))


def _name_fits(spec: JobSpec) -> None:
    room = NAME_LENGTH - longest_suffix(spec.largest_pod_count)
    excess = len(spec.name) - room
    if excess > 0:
        raise UsageError(
            f"The name '{spec.name}' is {pluralize(excess, 'character')} too long: the names of its pods would not fit "
            f"{NAME_LENGTH} characters.",
            hint=f"Use at most {room}.",
        )


def _shared_memory_fits(spec: JobSpec) -> None:
    if spec.shm >= spec.memory:
        raise UsageError(
            f"Shared memory is charged to the memory of its node: shm {spec.shm} leaves nothing of {spec.memory}.",
            hint=f"Lower shm, or raise memory above {spec.shm}.",
        )


def _processes_have_a_gpu_each(spec: JobSpec) -> None:
    if 0 < spec.gpus < spec.nproc:
        raise UsageError(
            f"{spec.nproc} processes cannot share {pluralize(spec.gpus, 'GPU')}: NCCL before 2.30 refuses two ranks on "
            "one.",
            hint=f"Set nproc to {spec.gpus}, or leave it out.",
        )


def _variables_are_free(spec: JobSpec) -> None:
    for name in (*spec.env, *spec.secret_env):
        check_variable(name)
    for name in spec.secret_env:
        if name in spec.env:
            raise UsageError(
                f"The environment variable {name} is given twice, in env and in secretEnv.", hint="Keep one."
            )


def check_variable(name: str) -> None:
    """Check that a variable is not one that the job or the launcher sets. Raises UsageError."""
    if name in SWITCHES | LAUNCHER_SETTINGS:
        return
    if name in KEYS_OF_SETTINGS:
        raise UsageError(
            f"The environment variable {name} would contradict the job's key {KEYS_OF_SETTINGS[name]}.",
            hint=f"Set {KEYS_OF_SETTINGS[name]} instead.",
        )
    if name.startswith("PET_"):
        raise UsageError(
            f"The environment variable {name} is a flag of the launcher that the job itself sets.",
            hint=f"Leave it out; these can be set: {', '.join(sorted(LAUNCHER_SETTINGS))}.",
        )
    if name in TORCHRUN_NAMES or name.startswith(RESERVED_PREFIXES) or name in set(Env):
        raise UsageError(
            f"The environment variable {name} is set by the launcher for each rank.",
            hint="Leave it out, or rename it.",
        )


def _validate_trainer_args(spec: JobSpec) -> None:
    """Check the trainer's arguments: other rules depend on them, and no pod would start with invalid ones."""
    for violation in invalid_options(spec.args) if runs_the_trainer(spec.program) else ():
        raise UsageError(violation.message, hint=violation.help)


def _validate_batch_size(spec: JobSpec) -> None:
    nodes, eaters = _max_data_size(spec)
    who = f"{eaters} ranks" if spec.parallel is None else f"the {eaters} replicas and shards of '{spec.parallel}'"
    for flag, what in (("--global-batch", "sample"), ("--batch-slices", "slice")):
        count = trainer_argument(spec, flag)
        if count is not None and count < eaters:
            raise UsageError(
                f"A batch of {pluralize(count, what)} cannot feed {who} "
                f"({pluralize(nodes, 'node')} of {pluralize(spec.nproc, 'process', 'processes')}).",
                hint=f"Raise {flag} to {eaters} or more, or request fewer nodes or processes.",
            )


def _max_data_size(spec: JobSpec) -> tuple[int, int]:
    """Return the number of nodes with the most parts of a batch, and the number of parts."""
    if spec.parallel is None:
        return spec.nnodes.maximum, spec.largest_world
    by_nodes = layout.layouts_by_nodes(spec.parallel, spec.nnodes, spec.nproc)
    return max(
        ((nodes, candidate.data_size) for nodes, candidate in by_nodes.items()), key=lambda candidate: candidate[1]
    )


def trainer_argument(spec: JobSpec, flag: str) -> int | None:
    """Return an integer argument of the reference trainer; None for other programs."""
    value = last_flag_value(spec.args, flag) if runs_the_trainer(spec.program) else None
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,18}", value) else None


def _time_is_enough(spec: JobSpec) -> None:
    if spec.grace_seconds < LEAST_GRACE_SECONDS:
        raise UsageError(
            f"{spec.grace_seconds} seconds of grace are too few to finish a step and save.",
            hint=f"Use {LEAST_GRACE_SECONDS} or more.",
        )
    if spec.deadline_seconds == 0:
        raise UsageError("A deadline of 0 seconds would stop the job before it starts.", hint="Leave it out for none.")


def _module_is_no_file(spec: JobSpec) -> None:
    program = spec.program
    if isinstance(program, Module) and program.name.endswith(".py"):
        module = program.name.removesuffix(".py")
        raise UsageError(
            f"module '{program.name}' is the name of a file.",
            hint=f"Submit the file as a script, or write '{module}' for the module.",
        )


def _code_is_in_one_place(spec: JobSpec) -> None:
    if spec.code_claim is None:
        return
    if spec.code is not None:
        raise UsageError(
            f"The code is in '{spec.code}' and on the claim '{spec.code_claim}'.", hint="Keep code or codeClaim."
        )
    program = spec.program
    if isinstance(program, Script) and (program.path.startswith("/") or ".." in PurePath(program.path).parts):
        raise UsageError(
            f"The script '{program.path}' is not a path in '{spec.code_claim}'.",
            hint="Name it relative to this directory.",
        )


def _program_starts_no_ranks(spec: JobSpec) -> None:
    """Check that the program is not a launcher, since it would start a set of ranks in every rank."""
    match spec.program:
        case Module(name):
            names = [name]
        case Command(words):
            modules = [word for flag, word in itertools.pairwise(words) if flag == "-m"]
            first = PurePath(words[0]).name
            names = [first, f"{first} {words[1]}" if len(words) > 1 else "", *modules[:1]]
        case _:
            return
    for name in LAUNCHERS.intersection(names):
        raise UsageError(
            f"'{name}' starts ranks itself, and the launcher of the job starts them already.",
            hint="Submit the script that it would start, and set nnodes and nproc; or give the whole line as command.",
        )


def _labels_are_free(spec: JobSpec) -> None:
    for key, names in (("labels", spec.labels), ("annotations", spec.annotations)):
        for name in names:
            if name.startswith(RESERVED_LABELS):
                raise UsageError(f"{key}: '{name}' is set by the job itself or its operator.", hint="Leave it out.")


def _affinity_is_free(spec: JobSpec) -> None:
    nodes = (spec.affinity or {}).get("nodeAffinity", {})
    required = nodes.get(REQUIRED) if isinstance(nodes, Mapping) else 0
    terms = required.get("nodeSelectorTerms") if isinstance(required, Mapping) else None
    has_terms = isinstance(terms, list) and all(
        isinstance(term, Mapping) and isinstance(term.get("matchExpressions", []), list) for term in terms
    )
    if required is not None and not has_terms:
        raise UsageError(
            f"affinity.nodeAffinity has no list of maps {REQUIRED}.nodeSelectorTerms.", hint="Write it as in a pod."
        )
    packed = [str(wish) for wish in spec.topology if wish.placement is Placement.PACK]
    if packed and "podAffinity" in (spec.affinity or {}):
        raise UsageError(
            f"affinity.podAffinity and the topology '{packed[0]}' set the same field of the pods.",
            hint="Keep one of them.",
        )


def _mount_paths_are_free(spec: JobSpec) -> None:
    """Check that no two volumes share a path, and that none uses our paths."""
    seen: dict[str, str] = {}
    for volume, path in _mount_paths(spec):
        check_mount_path(path, volume)
        if path in seen:
            raise UsageError(f"The mounts '{seen[path]}' and '{volume}' have the same path.", hint="Keep one of them.")
        seen[path] = volume


def check_mount_path(path: str, volume: str = "") -> None:
    """Check that a mount is not in the way of the job's own. Raises UsageError."""
    for taken in pod.RESERVED_PATHS:
        if path == taken or path.startswith(f"{taken}/"):
            raise UsageError(
                f"The mount '{volume or path}' is in the way of {taken}, which every job has.",
                hint="Choose another path.",
            )


def _mount_paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    mounted: Sequence[pod.Mount | pod.SecretFiles] = (*spec.mounts, *spec.secrets)
    for volume in mounted:
        yield str(volume), volume.path


def _requirements_can_be_fetched(spec: JobSpec) -> None:
    if spec.requirements is not None and spec.egress is Egress.CLOSED:
        raise UsageError(
            "The pods cannot fetch requirements with egress closed.",
            hint="Make an image with the packages (--build), or open egress.",
        )


RULES: Final[Sequence[Callable[[JobSpec], None]]] = (
    _module_is_no_file,
    _code_is_in_one_place,
    _program_starts_no_ranks,
    _name_fits,
    _shared_memory_fits,
    one_process_has_one_slice,
    _processes_have_a_gpu_each,
    _variables_are_free,
    _validate_trainer_args,
    layout.validate_single_layout,
    layout.the_layout_changes_with_the_nodes,
    layout.the_layout_takes_all_ranks,
    layout.validate_layer_groups_within_pod,
    layout.validate_replica_topology,
    _validate_batch_size,
    layout.the_model_fits_the_layout,
    layout.the_options_fit_the_layout,
    _time_is_enough,
    gpu_type_is_of_a_gpu,
    validate_unique_topology,
    _mount_paths_are_free,
    _labels_are_free,
    _affinity_is_free,
    the_gang_has_a_queue,
    the_priority_has_a_queue,
    the_queue_can_resize,
    _requirements_can_be_fetched,
    torchrun_has_the_keys,
    fabric.fits_the_nodes,
    fabric.validate_rdma_devices,
)


def _idle_gpus(spec: JobSpec) -> Iterator[Finding]:
    if spec.nproc < spec.gpus:
        idle = spec.gpus - spec.nproc
        yield warning(
            f"{pluralize(idle, 'GPU')} of each node will stand idle: nproc is {spec.nproc}.", "Leave nproc out."
        )


def _floating_image(spec: JobSpec) -> Iterator[Finding]:
    reference = spec.image.rpartition("/")[2]
    if "@" not in reference and (":" not in reference or reference.endswith(":latest")):
        yield warning(
            f"The image '{spec.image}' may be another one on each node and after each restart.",
            "Name a version or a digest.",
        )


DOUBTS: Final[Sequence[Callable[[JobSpec], Iterator[Finding]]]] = (
    in_clear,
    _idle_gpus,
    _floating_image,
    slices_of_one_gpu,
    layout.replicas_over_pods,
    layout.ranks_to_spare,
    fabric.override_warnings,
    fabric.env_conflict_warnings,
    fabric.critical_requirement_warnings,
    fabric.nccl_version_warnings,
)
