"""``kubectl ddp``: submit, watch and understand PyTorch training on Kubernetes, or the same job on this machine."""
