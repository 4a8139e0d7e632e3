"""What comes of the training, and what it is made of: rows of the dashboard of a job."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import Query, Row
from tools.dashboards.panel_types import bars, lines, on_the_right, table

LEARNING: Final = Row(
    "Is it learning?",
    (
        lines(
            "Loss",
            "Does it fall? A gap is a loss that is not a number.",
            Query("max(ddp_loss{<job>})", "training"),
            Query("max(ddp_eval_loss{<job>})", "evaluation"),
            unit="short",
            from_zero=False,
        ),
        lines(
            "Gradient",
            "Does it explode or vanish? A loss scale that falls again and again says that it explodes.",
            Query("max(ddp_gradient_norm{<job>})", "norm"),
            Query("max(ddp_loss_scale{<job>})", "loss scale"),
            unit="short",
            overrides=(on_the_right("loss scale", "short"),),
        ),
        lines(
            "Accuracy",
            "Share of the samples that the last evaluation found classified rightly.",
            Query("max(ddp_eval_accuracy_ratio{<job>})", "accuracy"),
            unit="percentunit",
            width=6,
            max=1,
        ),
        lines(
            "Learning rate",
            "Is the schedule the one that was meant, after a restart, too?",
            Query("max(ddp_learning_rate{<job>})", "learning rate"),
            unit="sci",
            width=6,
        ),
        bars(
            "Steps without an effect",
            "Were samples used up without moving the weights, since loss or gradient was not finite?",
            Query("max(increase(ddp_skipped_steps_total{<job>}[$__rate_interval])) > 0", "skipped"),
            unit="none",
        ),
    ),
)

MADE: Final = Row(
    "What is it made of?",
    (
        table(
            "Versions",
            "Is it the run, the torch and the precision that was meant?",
            Query(
                "max by (run_id, torch_version, nccl_version, backend, precision, parallelism) (ddp_job_info{<job>})",
                table=True,
            ),
            columns={
                "run_id": "Run",
                "torch_version": "torch",
                "nccl_version": "NCCL",
                "backend": "Backend",
                "precision": "Precision",
                "parallelism": "Parallelism",
            },
            height=5,
        ),
    ),
    collapsed=True,
)
