"""Resolution of a job from its sources, flag over file over preset over default; and back to its minimal settings.

After the sources, rules give the missing values, one rule per optional key. :func:`minimal_layer` reduces a complete
job to the settings that produce it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.errors import DdpError, UsageError, suggest_close_match, suggest_known
from kubectl_ddp.fabrics.catalog import AUTO
from kubectl_ddp.spec import fabric
from kubectl_ddp.spec.external_values import Shared, SharedPresets, nothing_shared
from kubectl_ddp.spec.fields import DEFAULTS, FIELDS, FILE_KEYS, PRESET, PRESETS, PROGRAM_KEYS, Preset
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.spec.launcher_command import take_over
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import checked, warnings
from kubectl_ddp.spec.serialization import make_program, spec_to_dict
from kubectl_ddp.util.finding import Finding
from kubectl_ddp.values.parsers import text
from kubectl_ddp.values.program import default_job_name
from kubectl_ddp.values.quantity import BadValue, Cpu, Memory

Values = dict[str, Any]
"""Parsed values by dotted key; maps are entry by entry."""

DEFAULT: Final = Origin(OriginKind.DEFAULT)
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class DefaultingContext:
    """Values from the environment of the command, as opposed to the user's settings."""

    image: str
    """Default image."""
    image_origin: Origin = DEFAULT
    name_suffix: str = ""
    """Suffix that makes a default name unique."""
    shared: Shared = nothing_shared
    """Function that loads shared presets; used for a preset that is not built in."""
    reads_files: bool = True
    """False if no value may be the name of a file that is read here."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Default for one key."""

    key: str
    make: Callable[[Values, DefaultingContext], tuple[Any, Origin] | None]


def _name(values: Values, surroundings: DefaultingContext) -> tuple[str, Origin]:
    key = next(key for key in PROGRAM_KEYS if key in values)
    name = default_job_name(make_program(key, values[key]))
    suffix = f"-{surroundings.name_suffix}" if surroundings.name_suffix else ""
    return name + suffix, Origin(OriginKind.RULE, key, "named after what it runs")


def _image(_values: Values, surroundings: DefaultingContext) -> tuple[str, Origin]:
    return surroundings.image, surroundings.image_origin


def _gpus(values: Values, _surroundings: DefaultingContext) -> tuple[Any, Origin]:
    if "mig" in values:
        return 1, Origin(OriginKind.RULE, "mig", "one slice is all that a process can use")
    return FIELDS["gpus"].default, DEFAULT


def _nproc(values: Values, _surroundings: DefaultingContext) -> tuple[int, Origin]:
    if values["gpus"]:
        return values["gpus"], Origin(OriginKind.RULE, "gpus", "one process per GPU")
    return 1, DEFAULT


def _cpu(values: Values, _surroundings: DefaultingContext) -> tuple[Cpu, Origin]:
    if values["gpus"]:
        return Cpu(3000 * values["gpus"]), Origin(
            OriginKind.RULE, "gpus", "3 cores per GPU: what the smallest usual GPU machines leave to a pod"
        )
    return Cpu(1000 * values["nproc"]), Origin(OriginKind.RULE, "nproc", "one core per process")


def _memory(values: Values, _surroundings: DefaultingContext) -> tuple[Memory, Origin]:
    if values["gpus"]:
        return Memory(12 * GIB * values["gpus"]), Origin(
            OriginKind.RULE, "gpus", "12 GiB per GPU: what the smallest usual GPU machines leave to a pod"
        )
    return Memory(GIB * (1 + values["nproc"])), Origin(
        OriginKind.RULE, "nproc", "1 GiB per process and one for /dev/shm and the agent"
    )


def _shm(values: Values, _surroundings: DefaultingContext) -> tuple[Memory, Origin]:
    size = max(1, values["memory"].size_bytes // 4)
    return Memory(size), Origin(
        OriginKind.RULE, "memory", "a quarter of the memory; 64 MiB, the default of containers, stops data loaders"
    )


def _threads(values: Values, _surroundings: DefaultingContext) -> tuple[str, Origin]:
    threads = max(1, values["cpu"].millis // 1000 // values["nproc"])
    reason = "cores per process; more threads than cores slow each other down"
    return str(threads), Origin(OriginKind.RULE, "cpu and nproc", reason)


RULES: Final[Sequence[Rule]] = (
    Rule("name", _name),
    Rule("image", _image),
    Rule("gpus", _gpus),
    Rule("nproc", _nproc),
    Rule("cpu", _cpu),
    Rule("memory", _memory),
    Rule("shm", _shm),
    Rule("env.OMP_NUM_THREADS", _threads),
)
"""Rules in order; each may use the results of earlier ones."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A job and the origin of each of its values."""

    spec: JobSpec
    origins: Mapping[str, Origin]
    """Origin by dotted key."""
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """Automatic choices with their reasons."""


def resolve(layers: Sequence[Layer], surroundings: DefaultingContext) -> Resolved:
    """Return the job described by ``layers`` (weakest first), completed by preset, defaults and rules.

    Raises:
        UsageError: If a value is invalid, or values contradict each other.
    """
    merged, notes = take_over(merge(layers))
    merged = merge([defaults(), _preset_layer(merged, surroundings.shared), merged])
    merged.pop(PRESET, None)
    if not surroundings.reads_files:
        _check_files(merged)
    values = {key: _parse(key, given) for key, given in merged.items()}
    origins = {key: given.origin for key, given in merged.items()}
    _check_program(values)
    for rule in RULES:
        if rule.key not in values and (made := rule.make(values, surroundings)) is not None:
            values[rule.key], origins[rule.key] = made
    _add_fabric(values, origins)
    spec = checked(JobSpec(**_attributes(values)))
    return Resolved(spec, {key: origins[key] for key in sorted(origins, key=_position)}, tuple(warnings(spec)), notes)


def _check_files(values: Mapping[str, Given]) -> None:
    """Check that no value is read from a file while it is parsed. Raises UsageError."""
    given = values.get("requirements")
    if given is not None and isinstance(given.raw, str):
        raise UsageError(
            f"{_place('requirements', given)}: '{given.raw}' is a file, and a cluster does not have it.",
            hint="List the packages, as in [einops==0.8.1].",
        )


def _add_fabric(values: Values, origins: dict[str, Origin]) -> None:
    """Add the fabric's values for keys that are not set."""
    if values.get("fabric", AUTO) == AUTO:
        values["fabric"], origins["fabric"] = fabric.match_profile(values)
    for key, given in fabric.layer(values["fabric"], fabric.facts_of(values)).items():
        head, _, entry = key.partition(".")
        is_given = key in values or (head == "env" and f"secretEnv.{entry}" in values)
        if not is_given:
            values[key], origins[key] = _parse(key, given), given.origin


def merge(layers: Sequence[Layer]) -> dict[str, Given]:
    """Merge sources, later ones over earlier ones; a program replaces a program under another key."""
    merged: dict[str, Given] = {}
    for layer in layers:
        if any(key in layer for key in PROGRAM_KEYS):
            merged = {key: given for key, given in merged.items() if key not in PROGRAM_KEYS}
        merged.update(layer)
    return merged


def _preset_layer(values: Mapping[str, Given], shared: Shared) -> Layer:
    if PRESET in values:
        given = values[PRESET]
        if isinstance(given.raw, str) and given.raw in PRESETS:
            return PRESETS[given.raw].layer()
        place = values["namespace"].raw if "namespace" in values else None
        return _load_shared_preset(given, lambda: shared(None if place is None else str(place))).layer()
    gpus = _parse("gpus", values["gpus"]) if "gpus" in values else "mig" in values
    return PRESETS["gpu-nccl" if gpus else "cpu-gloo"].layer()


def _load_shared_preset(given: Given, shared: Callable[[], SharedPresets]) -> Preset:
    """Return a shared preset of the job's namespace.

    Raises:
        UsageError: If the namespace does not have it.
    """
    name, why = str(given.raw), ""
    try:
        there = shared()
    except DdpError as error:
        there, why = SharedPresets(), f"; those of the cluster cannot be read: {error.message}"
    if name in there.texts:
        return there.read(name)
    known = [*PRESETS, *there.texts]
    raise UsageError(
        f"{given.origin.place}: there is no preset '{name}'{why.rstrip('.')}.", hint=suggest_known(name, known)
    )


def _parse(key: str, given: Given) -> Any:
    head, _, entry = key.partition(".")
    field = FIELDS[head]
    try:
        return field.parse({entry: given.raw})[entry] if field.is_map else field.parse(given.raw)
    except BadValue as error:
        raise UsageError(f"{_place(key, given)}: {error.message}.", hint=error.hint) from None


def _place(key: str, given: Given) -> str:
    origin = given.origin
    return origin.place if origin.kind is OriginKind.FLAG else f"{origin.place}, {key}"


def _check_program(values: Values) -> None:
    if not any(key in values for key in PROGRAM_KEYS):
        raise UsageError(
            "The job has no program.",
            hint="Name a script before any '--', or --module, --command or a job file with -f.",
        )


def _attributes(values: Values) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, value in values.items():
        head, _, entry = key.partition(".")
        if head in PROGRAM_KEYS:
            attributes["program"] = make_program(head, value)
        elif FIELDS[head].is_map:
            attributes.setdefault(FIELDS[head].attribute, {})[entry] = value
        else:
            attributes[FIELDS[head].attribute] = value
    return attributes


def _position(key: str) -> tuple[int, str]:
    head, _, entry = key.partition(".")
    return list(FIELDS).index(head), entry


def defaults() -> Layer:
    """Return the constant defaults, the weakest source."""
    return {key: Given(value, Origin(OriginKind.DEFAULT)) for key, value in DEFAULTS.items()}


def set_values(assignments: Sequence[str]) -> Layer:
    """Parse the values of ``--set KEY=VALUE``; lists are written ``[a, b]``. Raises UsageError."""
    layer: dict[str, Given] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        head, dot, _entry = key.partition(".")
        if not equals or head not in FILE_KEYS:
            hint = suggest_close_match(head, FILE_KEYS) or "Write --set KEY=VALUE, with a key of the job file."
            raise UsageError(f"--set {assignment}: a job has no key '{key}'.", hint=hint)
        if FILE_KEYS[head].is_map != bool(dot):
            raise UsageError(
                f"--set {assignment}: '{key}' takes no such value.",
                hint="Maps are set by entry, as in --set env.NAME=value.",
            )
        is_list = value.startswith("[") and value.endswith("]")
        raw = [text(item.strip()) for item in value[1:-1].split(",") if item.strip()] if is_list else value
        layer[key] = Given(list(raw) if isinstance(raw, list) else raw, Origin(OriginKind.FLAG, f"--set {key}"))
    return layer


ALWAYS_KEPT: Final = frozenset({"name", "namespace", "image", *PROGRAM_KEYS})
"""Keys that are always kept, since their defaults may change over time."""


def minimal_layer(spec: JobSpec, origin: Origin) -> Layer:
    """Return the minimal settings that resolve to ``spec``, with ``origin`` as the origin of each value."""
    surroundings = DefaultingContext(image=spec.image)
    layer = dict(entries(spec, origin))
    for key in reversed(layer):
        fewer = {other: given for other, given in layer.items() if other != key}
        if key.partition(".")[0] not in ALWAYS_KEPT and _resolves_to(fewer, spec, surroundings):
            layer = fewer
    return layer


def origin_from_job(job: str) -> Origin:
    """Return the origin of values copied from another job."""
    return Origin(OriginKind.FILE, f"job {job}")


def entries(spec: JobSpec, origin: Origin) -> Iterator[tuple[str, Given]]:
    """Yield every value of a job by dotted key."""
    for key, value in spec_to_dict(spec).items():
        if key not in FIELDS:
            continue
        if FIELDS[key].is_map and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", Given(entry, origin)) for name, entry in value.items())
        else:
            yield key, Given(value, origin)


def _resolves_to(layer: Layer, spec: JobSpec, surroundings: DefaultingContext) -> bool:
    try:
        return resolve([layer], surroundings).spec == spec
    except UsageError:
        return False
