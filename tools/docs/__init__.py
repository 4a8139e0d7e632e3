"""Writers of what is generated from code: pages and tables of ``docs/``, dashboards, files of charts, examples.

:mod:`tools.docs.__main__` lists them. ``python -m tools.docs`` writes them, which ``make docs`` calls.
"""
