"""Lint rules for the pods of a training job from any source, as data with reasons and sources.

::

  file ─▶ manifests ─▶ Workload, Pods ─▶ registry.check ─▶ findings
                       └─ RULES: memory, devices, network, security, launch, placement

The package is pure. Its input is the objects of one file, rendered by this program or written by hand. The variables of
the containers are also checked by the rules of :mod:`ddp_trainer.common.lint`.
"""
