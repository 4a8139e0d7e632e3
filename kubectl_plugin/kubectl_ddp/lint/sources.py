"""Sources of the rules about pods: addresses of documents and issues."""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.lint.sources import TROUBLESHOOTING, env, issue

__all__ = ["TROUBLESHOOTING", "env", "issue"]

_KUBERNETES: Final = "https://kubernetes.io/docs"
SHARED_MEMORY: Final = f"{TROUBLESHOOTING}#docker"
EMPTY_DIR: Final = f"{_KUBERNETES}/concepts/storage/volumes/#emptydir"
EXTENDED: Final = f"{_KUBERNETES}/tasks/configure-pod-container/extended-resource/"
POD_DNS: Final = f"{_KUBERNETES}/concepts/services-networking/dns-pod-service/#pod-s-dns-policy"
HEADLESS: Final = f"{_KUBERNETES}/concepts/services-networking/dns-pod-service/#pods"
POLICIES: Final = f"{_KUBERNETES}/concepts/services-networking/network-policies/"
SECURITY: Final = f"{_KUBERNETES}/concepts/security/pod-security-standards/"
TOPOLOGY: Final = f"{_KUBERNETES}/concepts/scheduling-eviction/assign-pod-node/#affinity-and-anti-affinity"
GANGS: Final = "https://kueue.sigs.k8s.io/docs/concepts/workload/"
SIDECARS: Final = "https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/"
PYTORCHJOB: Final = "https://github.com/kubeflow/training-operator (pkg/controller.v1/pytorch/envvar.go)"
TORCHRUN: Final = "https://docs.pytorch.org/docs/stable/elastic/run.html"
COMPUTE_DOMAIN: Final = "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu"
TCPXO: Final = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx-autopilot"
EFA_TYPES: Final = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"
EKS: Final = "https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html"
COREWEAVE: Final = "https://docs.coreweave.com/products/networking/hpc-interconnect/use-gpudirect-rdma"
AKS: Final = "https://github.com/Azure/aks-rdma-infiniband"
