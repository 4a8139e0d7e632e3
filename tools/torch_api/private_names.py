"""Private names of torch in use, each with the reason: torch has no public way that does the same."""

from __future__ import annotations

from typing import Final

REASONS: Final = {
    "torch._C._distributed_c10d": "the check of a machine looks up which flight recorders this build has",
    "torch._C._set_deterministic_algorithms": "the public function also imports the compiler, 1.4 s",
    "torch._amp_foreach_non_finite_check_and_unscale_": "the kernel of GradScaler, which accepts no other optimizers",
    "torch._dynamo": "the compiler is public only through torch.compile; its errors are not",
    "torch._dynamo.exc.TorchDynamoException": "base of the compiler's errors, for --compile-fallback",
    "torch._foreach_add_": "a few kernels instead of one for each weight, as in torch's optimizers",
    "torch._inductor.cpu_vec_isa.VecISA": "the compiler probes the processor in each process anew, 2 s",
    "torch._inductor.cpu_vec_isa.VecISA.build_arch_flags": "as above",
    "torch._inductor.cpu_vec_isa.VecISA.check_build": "as above",
    "torch._utils._rebuild_tensor_v3": "torch.save names it in every file with a view, so the writer of ours does too",
    "torch.autograd.graph._engine_run_backward": "backward() checks its arguments for each of many passes",
    "torch.cuda._compile_kernel": "bench gpu: a kernel that accesses memory that it must not",
    "torch.cuda._sleep": "bench gpu: a kernel that does not end",
    "torch.distributed.Backend._plugins.get": "the registry is the only place that tells nccl from nccl2",
    "torch.distributed.distributed_c10d._abort_process_group": "bench gpu: the abort of all groups; see stream_abort",
    "torch.distributed.tensor._random": "DTensor keeps one random state for each process, which outlives its mesh",
    "torch.distributed.tensor._random._rng_tracker": "as above",
    "torch.ops.mkldnn._is_mkldnn_fp16_supported": "no public query whether this CPU computes in fp16",
}
