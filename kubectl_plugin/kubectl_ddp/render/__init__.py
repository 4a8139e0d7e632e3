"""From a job to the objects that run it: pure, the same input gives the same objects."""

from kubectl_ddp.render.code import Code
from kubectl_ddp.render.objects import Site, engine_of, render

__all__ = ["Code", "Site", "engine_of", "render"]
