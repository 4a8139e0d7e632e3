"""Engines: kinds of Kubernetes objects that run a job, one module each.

:mod:`~kubectl_ddp.engines.registry` lists them. Everything else that depends on the engine reads the fields of
:class:`~kubectl_ddp.engines.engine_kind.EngineKind`.
"""
