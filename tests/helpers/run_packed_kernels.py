"""Runs the Triton kernels where there is no GPU: ``run_packed_kernels.py FILE`` interprets them for the cases in FILE.

``run_packed_kernels.py FILE CAPABILITY...`` compiles them for GPUs, by compute capability, as far as machine code.
A process of its own, because Triton reads TRITON_INTERPRET when it is imported.
"""

import json
import os
import sys
from itertools import product

import torch


def interpret(file: str) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from raysum.models.kernels import packed, packed_triton

    for operator in (packed._attention, packed._attention_backward):
        operator.register_kernel("cpu")(operator._init_fn)
    assert packed_triton.forward.__class__.__name__ == "InterpretedFunction"
    found = []
    for case in torch.load(file):
        arrays = [part.requires_grad_() for part in case["arrays"]]
        torch.manual_seed(case["seed"])
        context, lse = packed.attend_packed_lse(*arrays, *case["places"], **case["options"])
        used = torch.where(lse.isfinite(), lse, 0.0)
        total = (context * case["gradients"][0]).sum() + (used * case["gradients"][1]).sum()
        found.append([context.detach(), lse.detach(), *torch.autograd.grad(total, arrays)])
    torch.save(found, file)


class Driver:
    """Triton's driver of a GPU that is not here, which only compiles."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


class Compiled:
    """A kernel that is compiled for its arguments instead of launched."""

    def __init__(self, kernel):
        self.kernel, self.codes = kernel, []

    def __getitem__(self, grid):
        return lambda *given, **named: self.codes.append(self.kernel.warmup(*given, grid=grid, **named))


def compile_for(file: str, capabilities: list[int], sizes: list[int]) -> None:
    from triton.runtime import driver

    from raysum.models.kernels import packed_triton

    names = "forward", "backward_queries", "backward_keys"
    kernels = [Compiled(getattr(packed_triton, name)) for name in names]
    for name, kernel in zip(names, kernels, strict=True):
        setattr(packed_triton, name, kernel)
    found = []
    for capability, size in product(capabilities, sizes):
        driver.set_active(Driver(capability))
        for kernel in kernels:
            kernel.codes.clear()
        for total in (320, 321, 17):
            query, key, value = torch.zeros(total, 3, 8, size, dtype=torch.bfloat16).unbind(1)
            starts = torch.tensor([0, 10, total], dtype=torch.int32)
            context, lse = torch.zeros(total, 8, size, dtype=torch.bfloat16), torch.zeros(8, total)
            outputs = (context, lse), (context, lse, context, lse, lse, context), (context, lse, lse, context, context)
            skipped = torch.zeros(total, dtype=torch.bool)
            for options in ((0, -1, None, None), (6554, 256, skipped, torch.tensor(5))):
                for kernel, arrays in zip(kernels, outputs, strict=True):
                    places = starts, starts, total - 10, total - 10
                    packed_triton.launch(kernel, (query, key, value), places, *options, *arrays)
        for kernel in kernels:
            codes = {id(code): code for code in kernel.codes}
            found += [[capability, size, len(code.asm["cubin"]), code.metadata.shared] for code in codes.values()]
    with open(file, "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    if sys.argv[2:]:
        compile_for(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        interpret(sys.argv[1])
