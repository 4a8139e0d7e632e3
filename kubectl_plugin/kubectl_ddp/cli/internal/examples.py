"""Examples in the help of each command: the words after the command's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "init": (
        "train.py --image example.com/train --nnodes 2 --gpus 8",
        "train.py --image example.com/train --nnodes 1:2 --gpus 0",
    ),
    "submit": (
        "train.py --local --nproc 2 --follow",
        "train.py --nnodes 4 --gpus 8 --image example.com/train:1",
        "-f job.ddp.yaml --set nnodes=2:8 --dry-run",
    ),
    "preflight": ("train.py --nnodes 4 --gpus 8 --image example.com/train:1", "-f job.ddp.yaml --strict"),
    "capacity": ("", "--gpu-type H100 --queue research"),
    "render": ("-f job.ddp.yaml", "train.py --nnodes 4 --gpus 8 --explain"),
    "clone": ("digits --name digits-long -- train --epochs 100", "digits --name digits-wide --nnodes 8"),
    "presets": ("", "aws-efa"),
    "explain": ("", "nnodes"),
    "list": ("", "-A -o wide --sort-by .created", "-o custom-columns=NAME:.name,STEP:.step --watch"),
    "status": ("digits", "digits --ranks", "digits -o jsonpath={.state}"),
    "why": ("", "digits"),
    "hang": ("digits --timeout 120",),
    "bundle": ("digits -O digits.tar.gz",),
    "logs": ("digits --rank 0 --tail 20", "digits --rank failed", "digits -f --dedup"),
    "events": ("digits --warnings",),
    "top": ("digits", "digits --once"),
    "report": (
        "digits -o digits.html --open",
        "digits --from prometheus https://prometheus.example.com",
        "digits digits-2",
    ),
    "history": ("", "digits -o json"),
    "dashboard": ("digits --grafana https://grafana.example.com",),
    "wait": ("digits --for=complete --timeout 1h", "digits --for=step=100"),
    "exec": ("digits --rank 3 -- nvidia-smi", "digits -it"),
    "profile": ("digits --rank 3 --steps 5",),
    "port-forward": ("digits --rank 3",),
    "scale": ("digits --nnodes 4", "digits --nnodes 4 --dry-run"),
    "restart": ("digits --wait",),
    "suspend": ("digits",),
    "resume": ("digits --wait",),
    "delete": ("digits", "--local --all --yes"),
    "prune": ("--older-than 7d --dry-run",),
    "config": ("", "set image example.com/train:1", "unset image"),
    "completion": ("bash",),
    "doctor": ("", "--local"),
    "version": ("",),
}
