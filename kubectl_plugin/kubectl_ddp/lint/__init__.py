"""What is doubtful in the pods of a training job, whoever wrote them: rules as data, with reason and source.

::

    file ─▶ manifests ─▶ Workload, Pods ─▶ catalogue.check ─▶ findings
                                               └─ RULES: memory, devices, network, security, launch, placement

Pure: what is looked at is the objects of one file, as rendered or as somebody else wrote them. The variables of their
containers go through the rules of :mod:`ddp_trainer.common.lint` as well.
"""
