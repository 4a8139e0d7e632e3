"""Rules that name the rank for which the others wait, and the data about ranks that they read; pure functions.

Both sides use this package: the store names a hanging rank past the limit, and ``kubectl ddp hang`` on demand. One copy
of the rules ensures that both name the same rank.
"""
