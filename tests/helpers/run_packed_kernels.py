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


def compile_for(file: str, capabilities: list[int], sizes: list[int]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from raysum.models.kernels import packed_triton

    kinds = {"scale": "fp32", "lse": "*fp32", "lse_gradient": "*fp32", "inner": "*fp32"}
    kinds |= {name: "*bf16" for name in ("query", "key", "value", "gradient", "context", "d_query", "d_key", "d_value")}
    kinds |= {"query_starts": "*i32", "key_starts": "*i32"}
    found = []
    kernels = packed_triton.forward, packed_triton.backward_queries, packed_triton.backward_keys
    for capability, size, kernel, is_plain in product(capabilities, sizes, kernels, (True, False)):
        settings = packed_triton.blocks_of(size)
        options = {name: settings.pop(name) for name in ("num_warps", "num_stages")}
        fixed = {
            **settings,
            "HEADS": 8,
            "SIZE": size,
            "LIMIT": 0 if is_plain else 6554,
            "REACH": -1 if is_plain else 256,
        }
        fixed |= {"skipped": None, "seed": None} if is_plain else {}
        given = kinds | {"skipped": "*u8", "seed": "*i64"}
        signature = {name: "constexpr" if name in fixed else given.get(name, "i32") for name in kernel.arg_names}
        is_even = [kind.startswith("*") or name.endswith(("_stride", "_head")) for name, kind in signature.items()]
        attributes = {(index,): [["tt.divisibility", 16]] for index, even in enumerate(is_even) if even}  # as launched
        source = ASTSource(kernel, signature, fixed, attributes)
        code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        found.append([capability, size, len(code.asm["cubin"]), code.metadata.shared])
    with open(file, "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    if sys.argv[2:]:
        compile_for(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        interpret(sys.argv[1])
