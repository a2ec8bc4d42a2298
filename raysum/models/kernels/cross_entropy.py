"""Label-smoothed cross-entropy over a large vocabulary; the scores of all positions never exist at once.

T target positions, V vocabulary size, D width.
"""

from typing import Any

import torch
from torch import Tensor

from raysum.models.kernels.linear import product
from raysum.models.kernels.recomputation import max_elements

_CHUNK = 256  # target positions in a chunk on a CPU: scores of 256 x 32,000 in fp32 take 33 MB


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    smoothing: float,
    odds: Tensor | None = None,
    *,
    pad: int,
) -> Tensor:
    """Return the sum over T of ``-sum_v q(v) log p(v)`` with ``p = softmax(hidden W' + bias)``, a scalar.

    ``hidden`` [T, D], ``weight`` [V, D], ``bias`` [V], ``gold`` [T]. As in HT's code, ``q`` is ``1 - smoothing`` on the
    gold id, 0 on ``pad`` and ``smoothing / (V - 2)`` on each other id. That code's KL(q, p) is this loss minus the
    entropy of q, a constant. With ``odds`` [T] the gold id has ``p(v) + exp(odds)`` instead of ``p(v)``; the others do
    not change. The forward pass computes scores and gradients chunk by chunk, so [T, V] never exists at once.
    """
    return _SmoothedCrossEntropy.apply(hidden, weight, bias, gold, odds, smoothing, pad, torch.is_grad_enabled())


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        hidden, weight, bias, gold, odds, smoothing, pad, gradients = inputs
        kind = hidden.device.type
        is_narrow = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if is_narrow else hidden.dtype
        matrix = weight.to(dtype)
        spread = smoothing / (len(weight) - 2)
        loss = torch.zeros((), device=hidden.device)
        grad_hidden = torch.zeros_like(hidden) if gradients else None
        weight_needed, bias_needed = (gradients and needed for needed in ctx.needs_input_grad[1:3])
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if weight_needed else None
        grad_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if bias_needed else None
        grad_odds = torch.zeros_like(odds) if gradients and odds is not None else None
        chunk = _CHUNK if kind == "cpu" else max(_CHUNK, max_elements(hidden.device) // len(weight))
        for start in range(0, len(gold), chunk):
            rows, target = hidden[start : start + chunk].to(dtype), gold[start : start + chunk, None]
            scores = product(rows, matrix, None if bias is None else bias.to(dtype))
            log_p = scores.log_softmax(1, dtype=torch.float32)
            log_gold = log_p.gather(1, target)
            whole = log_gold if odds is None else torch.logaddexp(log_gold, odds[start : start + chunk, None])
            loss -= (1 - smoothing) * whole.sum()
            if smoothing:
                loss -= spread * (log_p.sum() - log_gold.sum() - log_p[:, pad].sum())
            if grad_hidden is None:
                continue
            difference = log_p.exp_()  # becomes p - q
            lead = torch.full_like(log_gold, smoothing + spread - 1)
            if odds is not None and grad_odds is not None:
                copied = (1 - smoothing) * (1 - (log_gold - whole).exp())  # the odds' share of the gradient
                grad_odds[start : start + chunk] = -copied.squeeze(1)
                difference.mul_(1 - copied)
                lead += copied
            difference.sub_(spread)
            difference[:, pad] += spread
            difference.scatter_add_(1, target, lead)
            if grad_bias is not None:
                grad_bias += difference.sum(0)
            narrow = difference.to(dtype)
            grad_hidden[start : start + chunk] = product(narrow, matrix.T)
            if grad_weight is not None:
                grad_weight += product(narrow.T, rows.T)
        ctx.grads = (grad_hidden, grad_weight, grad_bias, None, grad_odds)
        ctx.dtypes = tuple(None if array is None else array.dtype for array in (hidden, weight, bias, None, odds))
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        pairs = zip(ctx.grads, ctx.dtypes, strict=True)
        return *((None if g is None else (g * grad).to(dtype)) for g, dtype in pairs), None, None, None
