"""Sources of the fabrics' values: addresses of recipes, guides and issues."""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.lint.sources import EFA, ENV, env, issue

__all__ = ["EFA", "ENV", "env", "issue"]

NCCL_TROUBLESHOOTING: Final = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#networking-issues"
)
NCCL_SHARED_MEMORY: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker"
TORCH: Final = "https://docs.pytorch.org/docs/stable/distributed.html"

EFA_PLUGIN: Final = "https://github.com/aws/aws-ofi-nccl"
EKS: Final = "https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html"
EKS_DEVICES: Final = "https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html"
EFA_TYPES: Final = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"

_ACCELERATORS: Final = "https://github.com/GoogleCloudPlatform/container-engine-accelerators"
TCPX: Final = f"{_ACCELERATORS} (gpudirect-tcpx/nccl-config-latest.yaml)"
FAST_SOCKET: Final = "https://cloud.google.com/kubernetes-engine/docs/how-to/nccl-fast-socket"
TCPXO: Final = f"{_ACCELERATORS} (gpudirect-tcpxo)"
GIB: Final = f"{_ACCELERATORS} (gpudirect-rdma)"
GIB_DRA: Final = f"{_ACCELERATORS} (gpudirect-rdma/nccl-test-managed-rdma.yaml)"
FASTRAK: Final = "https://github.com/NVIDIA/dgxc-benchmarking (README, GCP)"
TCPX_LOG: Final = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx"
GUEST_CONFIG: Final = issue("NVIDIA/aicr", 422)

AZURE: Final = "https://github.com/Azure/ai-infrastructure-on-azure"
AKS: Final = "https://github.com/Azure/aks-rdma-infiniband"

OCI: Final = "https://github.com/oracle-quickstart/oci-hpc-oke (docs/recommended-nccl-rccl-parameters-by-shape.md)"
OCI_VF: Final = "https://github.com/oracle-quickstart/oci-hpc-oke (manifests/nccl-tests/kueue/virtual-functions)"

COREWEAVE: Final = "https://docs.coreweave.com/products/networking/hpc-interconnect/nccl-configuration-reference"
COREWEAVE_IB: Final = "https://docs.coreweave.com/products/networking/hpc-interconnect/use-gpudirect-rdma"
COREWEAVE_ROCE: Final = "https://docs.coreweave.com/products/networking/hpc-interconnect/use-gpudirect-rdma-roce"

SKYPILOT: Final = "https://github.com/skypilot-org/skypilot (sky/provision/kubernetes/utils.py)"
DSTACK: Final = "https://github.com/dstackai/dstack"

DRA_DRIVER: Final = "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu (api/nvidia.com/resource/v1beta1)"
NETWORK_OPERATOR: Final = "https://github.com/Mellanox/network-operator"
NON_ROOT_MEMLOCK: Final = issue("NVIDIA/nvidia-container-toolkit", 2037)
MULTUS: Final = issue("k8snetworkplumbingwg/multus-cni", 1100)
