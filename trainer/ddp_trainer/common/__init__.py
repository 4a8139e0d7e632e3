"""Code that the launcher, the trainer and ``kubectl ddp`` share: names, rules and arithmetic; standard library only."""
