"""Rendering of a job into Kubernetes objects; pure: equal input gives equal objects."""

from kubectl_ddp.code.archive import Code
from kubectl_ddp.render.objects import Site, engine_of, render

__all__ = ["Code", "Site", "engine_of", "render"]
