"""Generator of the tables that the chart ``ddp-job`` shares with this package.

The tables are names, shapes, fabrics and presets, the values and their schema. A chart cannot call Python, so it reads
the same tables instead. ``python -m kubectl_ddp.chart charts/ddp-job`` writes them, and a test checks that they are
current.
"""
