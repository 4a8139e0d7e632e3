"""``files/constants.yaml``: names that the chart's templates share with this package and with the pods."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from ddp_trainer.common import constants as names
from ddp_trainer.common import parallel_dims as arithmetic
from ddp_trainer.common.enums import CHOICES, RENAMED, renamed_flag
from ddp_trainer.common.layout_range import MOST_REPLICAS
from ddp_trainer.common.model_constraints import SCHEDULES
from ddp_trainer.common.option_conflicts import CLASHES, WITHOUT_SHARD, OptionConflict
from kubectl_ddp.backends.cluster.http.resources import PROVIDERS
from kubectl_ddp.backends.cluster.read.kueue_positions import WORKLOADS
from kubectl_ddp.backends.cluster.write.submission import PLATFORM_MONITOR
from kubectl_ddp.code import archive
from kubectl_ddp.code.script import LARGEST_BYTES
from kubectl_ddp.kube.job_kinds import ROOTS
from kubectl_ddp.kube.kueue_queue import KUEUE_PRIORITY, KUEUE_QUEUE
from kubectl_ddp.plan import reference_model
from kubectl_ddp.render import choose, engines, fabric, failures, gang_scheduling, objects, pod, secret, volumes
from kubectl_ddp.spec import layout, plaintext_secrets, queues, rules, serialization, shared_presets
from kubectl_ddp.spec.fields import FIELDS
from kubectl_ddp.spec.resolve import DEFAULTS
from kubectl_ddp.values import dns, node_requirements
from kubectl_ddp.values import volumes as mounts
from kubectl_ddp.values.program import TRAINER

RENDERED: Final = f"{names.GROUP}/rendered"
"""Annotation of a release's root object: digest of all values that cannot change during its lifetime."""


def constants() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "document": {"apiVersion": serialization.API_VERSION, "kind": serialization.KIND},
        "defaults": dict(DEFAULTS),
        "engines": _engine_values(),
        "gangs": _gang_values(),
        **_contract(),
        **_pods(),
        **_rules(),
    }


def _contract() -> dict[str, Any]:
    return {
        "env": _members(names.Env),
        "port": _members(names.Port),
        "portName": _members(names.PortName),
        "label": _members(names.Label),
        "annotation": _members(names.Annotation),
        "path": _members(names.Path),
        "role": _members(names.Role),
        "scope": _members(names.CheckpointScope),
        "logPrefix": names.LOG_PREFIX,
        "manager": names.FIELD_MANAGER,
        "renderedAnnotation": RENDERED,
    }


def _pods() -> dict[str, Any]:
    return {
        "launcher": fabric.LAUNCHER,
        "networksAnnotation": fabric.MULTUS,
        "channel": fabric.CHANNEL,
        "gpu": pod.GPU,
        "mig": pod.MIG,
        "gpuProduct": node_requirements.GPU_PRODUCT,
        "neverReady": pod.NEVER_READY,
        "placeLabels": list(pod.PLACE_LABELS),
        "podSecurity": dict(pod.POD_SECURITY),
        "containerSecurity": dict(pod.CONTAINER_SECURITY),
        "unpack": list(pod.UNPACK),
        "archive": archive.ARCHIVE,
        "codeHashLength": archive.HASH_LENGTH,
        "largestCode": LARGEST_BYTES,
        "runIdLength": objects.PLACEHOLDER_LENGTH,
        "runSecret": {
            "key": names.SECRET_KEY,
            "file": f"{names.Path.SECRET}/{names.SECRET_KEY}",
            "bytes": secret.SECRET_BYTES,
            "hashLength": secret.HASH_LENGTH,
            "mode": secret.OWNER_READS,
        },
        "readableByGroup": volumes.READABLE_BY_GROUP,
        "largestBackoffLimit": failures.LARGEST_LIMIT,
        "permanentExitCodes": {"first": names.Exit.FAILURE.value, "beyond": names.Exit.SIGNAL_BASE.value},
        "platformMonitor": PLATFORM_MONITOR,
        "dns": {"servers": [str(server) for server in dns.DEFAULT], "ports": list(dns.PORTS)},
        "presets": {
            "configMap": shared_presets.CONFIG_MAP,
            "keys": [key for key, field in FIELDS.items() if not field.is_map],
            "maps": [key for key, field in FIELDS.items() if field.is_map],
            "own": sorted(shared_presets.OWN),
        },
        # Flags are keys in the chart.
        "providers": {kind: way.replace("--", "") for kind, way in PROVIDERS.items()},
        "kueueVersions": list(WORKLOADS),
        "kueueQueue": KUEUE_QUEUE,
        "kueuePriority": KUEUE_PRIORITY,
        "kaiQueue": gang_scheduling.KAI_QUEUE,
    }


def _rules() -> dict[str, Any]:
    return {
        "nameLength": names.NAME_LENGTH,
        "storePodSuffix": rules.STORE_POD_SUFFIX,
        "podOfJobSet": rules.POD_OF_JOBSET.replace("{index}", "%d"),
        "layout": {
            "dimensions": list(arithmetic.WRITTEN),
            "most": arithmetic.MOST,
            "mostReplicas": MOST_REPLICAS,
            "mostLookedAt": layout.MOST_LOOKED_AT,
        },
        "ownGpt": {
            "task": reference_model.TASK,
            "model": reference_model.MODEL,
            "sizes": dict(reference_model.SIZES),
            "vocabulary": reference_model.VOCABULARY,
            "globalBatch": reference_model.GLOBAL_BATCH,
            "schedule": reference_model.SCHEDULE,
            "whole": f"^(?:{reference_model.WHOLE.pattern})$",
            "flags": dict(reference_model.FLAGS),
            "schedules": {
                name: {"stagesPerRank": asks.stages_per_rank, "inRounds": asks.in_rounds, "fills": asks.fills}
                for name, asks in SCHEDULES.items()
            },
        },
        "choices": [{"flag": flag, "words": [str(word) for word in words]} for flag, words in CHOICES.items()],
        "renamed": [{"flag": flag, "sentence": renamed_flag(flag)} for flag in RENAMED],
        "clashes": [_conflict_entry(clash) for clash in (*CLASHES, *WITHOUT_SHARD)],
        "leastGrace": rules.LEAST_GRACE_SECONDS,
        "trainer": TRAINER,
        "variables": {
            "free": sorted(names.SWITCHES),
            "taken": sorted({*names.Env, *rules.TORCHRUN_NAMES} - names.SWITCHES),
            "prefixes": list(rules.RESERVED_PREFIXES),
        },
        "secret": {
            "variable": f"(?i){plaintext_secrets.VARIABLE.pattern}",
            "flag": plaintext_secrets.FLAG.pattern,
            "form": plaintext_secrets.FORM.pattern,
            "harmless": f"^(?:{plaintext_secrets.HARMLESS.pattern.removeprefix('(?i)')})$",
        },
        "paths": {"ours": [str(path) for path in mounts.OURS], "system": list(mounts.SYSTEM)},
    }


def _conflict_entry(clash: OptionConflict) -> dict[str, Any]:
    return {
        "where": str(clash.where),
        "words": [
            {"flag": word.flag, "value": word.value, "but": word.but, "isSwitch": word.is_switch}
            for word in clash.words
        ],
        "sentence": clash.message,
        "help": clash.help,
    }


def _engine_values() -> dict[str, Any]:
    return {
        str(name): {
            "apiVersion": rendering.root.api_version,
            "kind": rendering.root.kind,
            "container": rendering.container,
            "jobLabels": dict(rendering.job_labels),
            "restartPolicy": rendering.restart_policy or "",
            "hasSubdomain": rendering.has_subdomain,
            "limitsJob": rendering.limits_job,
            "order": list(ROOTS).index(rendering.root.engine),
        }
        for name, rendering in engines.RENDERINGS.items()
    }


def _gang_values() -> dict[str, Any]:
    served = [{"gang": str(gang), "apiVersion": kind[0], "kind": kind[1]} for gang, kind in choose.GANG_KINDS]
    return {
        "served": served,
        "schedulers": {str(gang): name for gang, name in queues.SCHEDULERS.items()},
        "ofKueue": sorted(map(str, queues.OF_KUEUE)),
    }


def _members(names: Iterable[Enum]) -> dict[str, Any]:
    return {member.name: member.value for member in names}
