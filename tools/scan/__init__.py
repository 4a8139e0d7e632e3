"""Everything that a chart, an overlay or the plugin makes of Kubernetes, looked at by checkov: ``make checkov``.

``objects`` collects it, ``unwrap`` puts the pods of custom resources, which checkov passes over, into Jobs, ``skips``
reads which of its checks are not for us, each with its reason.
"""
