"""Who is it that the others wait for? How ranks look, and the rules that name one; pure.

Used by both sides, as ``ddp_trainer.common.lint`` is: the store names who hangs past the limit, and ``kubectl ddp
hang`` on demand, and two copies of these rules would come to name different ranks.
"""
