"""``kubectl ddp``: submit, watch and debug PyTorch training jobs on Kubernetes or on this machine."""
