"""The launcher: one agent per pod that starts the ranks, and the store that says which ranks there are.

Standard library only, so that an agent is ready in a tenth of a second; ``handler`` alone speaks to torch, because
stock ``torchrun`` loads it.
"""
