"""Diagnosis of a job: facts are read once, a chain of small checks examines them, and findings are sorted by cause.

``model`` defines findings and the order of causes, ``facts`` the data, and ``gather`` reads it. ``chain`` lists the
checks. Each other module contains the checks of one concern.
"""
