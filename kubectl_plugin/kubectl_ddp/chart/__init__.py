"""What the chart ``ddp-job`` takes from this package: names, shapes, fabrics and presets, values and their schema.

A chart cannot call Python; it decides by the same tables instead. ``python -m kubectl_ddp.chart charts/ddp-job`` writes
them, and a test keeps them in step.
"""
