"""Permissions required by each command: one table, and the Roles and documents generated from it.

``model`` defines a right, ``table`` lists the API requests of each command, and ``role_builder`` builds the Role to
request. ``reference`` generates the documentation page. The package is pure; ``cluster`` checks which rights are
granted.
"""
