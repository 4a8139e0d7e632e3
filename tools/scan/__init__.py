"""Scan the objects of charts, overlays and the plugin with checkov: ``make checkov``.

``objects`` collects it, ``unwrap`` puts the pods of custom resources, which checkov passes over, into Jobs, ``skips``
reads which of its checks are not for us, each with its reason.
"""
