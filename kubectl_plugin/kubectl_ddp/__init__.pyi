from kubectl_ddp.client.client import Client
from kubectl_ddp.client.job import Job

__all__ = ["Client", "Job"]
