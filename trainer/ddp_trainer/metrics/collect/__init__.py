"""Values that are sampled or summed outside of a step: GPUs, garbage collection, goodput, collectives and pod
totals.
"""
