"""Rows about learning curves and versions of the dashboard of a job."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import Query, Row
from tools.dashboards.panel_types import on_the_right, stacked_series, table, time_series

LEARNING: Final = Row(
    "Is it learning?",
    (
        time_series(
            "Loss",
            "Does the loss decrease? A gap is a loss of NaN or infinity.",
            Query("max(ddp_loss{<job>})", "training"),
            Query("max(ddp_eval_loss{<job>})", "evaluation"),
            unit="short",
            from_zero=False,
        ),
        time_series(
            "Gradient",
            "Does the gradient norm explode or vanish? A loss scale that keeps dropping is a sign of exploding "
            "gradients.",
            Query("max(ddp_gradient_norm{<job>})", "norm"),
            Query("max(ddp_loss_scale{<job>})", "loss scale"),
            unit="short",
            overrides=(on_the_right("loss scale", "short"),),
        ),
        time_series(
            "Accuracy",
            "Accuracy of the latest evaluation.",
            Query("max(ddp_eval_accuracy_ratio{<job>})", "accuracy"),
            unit="percentunit",
            width=6,
            max=1,
        ),
        time_series(
            "Learning rate",
            "Is the schedule as configured, also after a restart?",
            Query("max(ddp_learning_rate{<job>})", "learning rate"),
            unit="sci",
            width=6,
        ),
        stacked_series(
            "Skipped steps",
            "How many steps did not update the weights because loss or gradients were not finite?",
            Query("max(increase(ddp_skipped_steps_total{<job>}[$__rate_interval])) > 0", "skipped"),
            unit="none",
        ),
    ),
)

MADE: Final = Row(
    "Which versions run?",
    (
        table(
            "Versions",
            "Are run, torch version and precision the intended ones?",
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
