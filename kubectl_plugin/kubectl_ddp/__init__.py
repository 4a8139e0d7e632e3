"""``kubectl ddp``: submit, watch and debug PyTorch training jobs on Kubernetes or on this machine.

Public names are imported when they are used, because the command line starts within milliseconds. ``__init__.pyi``
declares them for type checkers.
"""

__all__ = ["Client", "Job"]


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kubectl_ddp.client import client  # noqa: PLC0415 - as said above

    return getattr(client, name)
