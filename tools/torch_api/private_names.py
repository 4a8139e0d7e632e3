"""Private names of torch in use, each with the reason, which stands in more detail where the name is used."""

from __future__ import annotations

from typing import Final

REASONS: Final = {
    "torch._C._distributed_c10d": "bench gpu: looks up which flight recorders this build has",
    "torch._C._set_deterministic_algorithms": "the public function also imports the compiler",
    "torch._amp_foreach_non_finite_check_and_unscale_": "the public way, a norm, takes five times as long",
    "torch._dynamo": "home of the compiler's errors",
    "torch._dynamo.exc.TorchDynamoException": "base of the compiler's errors, which has no public name",
    "torch._foreach_add_": "on a GPU a few kernels instead of one for each weight",
    "torch._inductor.cpu_vec_isa.VecISA": "results of the compiler's probes are reused; no setting covers all probes",
    "torch._inductor.cpu_vec_isa.VecISA.build_arch_flags": "as above",
    "torch._inductor.cpu_vec_isa.VecISA.check_build": "as above",
    "torch._utils._rebuild_tensor_v3": "files in torch's format refer to it",
    "torch.autograd.graph._engine_run_backward": "the public function imports sympy when it gets gradients",
    "torch.cuda._compile_kernel": "bench gpu: a kernel that writes to an illegal address",
    "torch.cuda._sleep": "bench gpu: torch has no public kernel that is slow",
    "torch.distributed.Backend._plugins.get": "the registry is the only place that tells nccl from nccl2",
    "torch.distributed.distributed_c10d._abort_process_group": "bench gpu: torch has no public way to abort all groups",
    "torch.distributed.tensor._random": "torch has no function that releases the generator of tensor parallelism",
    "torch.distributed.tensor._random._rng_tracker": "as above",
    "torch.ops.mkldnn._is_mkldnn_fp16_supported": "torch has no public query whether this CPU computes in fp16",
}
