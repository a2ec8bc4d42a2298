"""Small systems of every kind on ragged datasets, and the plain torch loop that their trainings must equal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from helpers.small_datasets import write_dataset
from helpers.small_trainings import trained
from raysum import systems
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.models.adapters import adapt
from raysum.models.kernels import compilation, cross_entropy, linear, recomputation
from raysum.models.kernels.recomputation import recompute_layers
from raysum.runs.folder import Run
from raysum.stream.loader import batches
from raysum.train.job_spec import JobSpec, job_spec_of

STEPS, MICRO_BATCHES = 20, 4
OFFLOADED = {
    4: ["offload_optimizer"],
    5: ["offload_optimizer", "offload_param"],
}  # pseudo-stages: parts of ZeRO-3 in CPU memory
WET = {"dropout": 0.1, "attention_dropout": 0.1}
SMALL = {"width": 16, "ffn": 24, "heads": 2, **WET}
FAMILY = {**SMALL, "pooling_heads": 2, "ffn_dropout": 0.1}
DRY = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}
T5 = {"norm": "rms", "bias": False, "places": "relative", "gated": True}
UMT5 = {**T5, "layer_distances": True, "source_embedding": True}
LED = {"places": "learned", "source_places": 300, "target_places": 300, "window": 8, "global_ids": [5, 9]}
BART = {"places": "learned", "source_places": 300, "target_places": 300, "activation": "gelu", "embedding_norm": True}

Case = tuple[str, dict[str, Any]]  # the dataset's kind, and sections of the config


def _family(mix: str, options: dict[str, Any] | None = None, **sections: Any) -> Case:
    encoder, decoder = mix.split("/")
    model = {**FAMILY, "encoder": encoder, "decoder": decoder, **(options or {})}
    return "summarization", {"model": model, **sections}


def _other(system: str, kind: str = "summarization", **options: Any) -> Case:
    return kind, {"model": {"system": system, **options}}


_HIBERT = {**SMALL, "layers": 1, "window": 4}
CASES: dict[str, Case] = {
    "flat": _family("SS/FF"),
    "HT": _family("LG/F", {"norm": "pre"}),
    "PHT": _family("LL/PP", {"norm": "post", "form": "code"}),
    "VHT": _family("L/VV", {"tied_output": False}),
    "paper's form": _family("SLG/FPV", {"form": "paper"}),
    "graph": _family("LG/P", {"graph_heads": 2}),
    "copy gate": _family("LL/FP", {"copy_heads": 2}),
    "recomputed": _family("LG/FP", {"copy_heads": 1}, train={"recompute": True}),
    "like BART": _family("SL/F", {"backbone": BART}),
    "like LED": _family("WW/F", {"positions": "flat", "backbone": LED}),
    "like T5": _family("SL/FP", {"backbone": T5}),
    "like UMT5": _family("SGL/FP", {"tied_output": False, "backbone": UMT5}),
    "adapters": _family("LLG/F", adapters={"rank": 2, "dropout": 0.1}),
    "tdmca": _other("tdmca", **SMALL, layers="LM", block=16, compression=3),
    "txl": _other("txl", **SMALL, layers=2, segment=16, memory=8),
    "graphsum": _other("graphsum", **SMALL, local_layers=1, graph_layers=2, decoder_layers=1),
    "ranker": _other("ranker", width=16, hidden=16, dropout=0.1),
    "hibert": _other("hibert", "extraction", **_HIBERT),
    "hibert, pre-training": _other("hibert", "pretraining", **_HIBERT, task="pretraining"),
    "alignment": _other("predictor", "alignment", width=16, ffn=24, heads=2, dropout=0.1),
}

COMPILED = {
    "compiled": _family("L/P", DRY, train={"compile": True}),
    "compiled, recomputed": _family("L/P", DRY, train={"compile": True, "recompute": True}),
}

# Attention over packed rows, by helpers.packed_kernel. Plain torch pads them, except with dropout.
PACKED = {
    "packed": _family("SLG/FPV", {"attention_dropout": 0.0}),
    "packed, gated": _family("L/PV", {"attention_dropout": 0.0, "backbone": BART}),
    "packed windows": _family("WW/F", {"attention_dropout": 0.0, "positions": "flat", "backbone": LED}),
    "packed, with dropout": _family("SL/FPV"),
    "packed graph, with dropout": _other("graphsum", **SMALL, local_layers=1, graph_layers=2, decoder_layers=1),
    "packed windows, with dropout": _family("W/F", {"positions": "flat", "backbone": LED}),
}


def write_datasets(folder: Path) -> None:
    """One of each kind into ``folder``, each example of another size than its neighbours."""
    for kind in sorted({kind for kind, _ in CASES.values()}):
        write_dataset(folder / kind, {"train": 240}, kind=kind, paragraphs=6, tokens=24, graph=kind == "summarization")


@contextmanager
def low_thresholds() -> Iterator[None]:
    """Every kernel chooses and splits at sizes that lie among those of these small batches."""
    with (
        torch.random.fork_rng(),
        mock.patch.multiple(linear, _LEAST_MATRIX=500, _LEAST_WORK=20_000),
        mock.patch.object(cross_entropy, "_CHUNK", 16),
        mock.patch.object(compilation, "BACKEND", "aot_eager"),
        mock.patch.object(recomputation, "_ELEMENTS", {"cpu": 2_000}),
    ):
        yield


def brief_for(name: str, folder: Path, stage: int, low: bool, steps: int = STEPS) -> JobSpec:
    """The job of case ``name`` on the datasets in ``folder``, at a ZeRO stage or one of ``OFFLOADED``."""
    kind, sections = (CASES | COMPILED | PACKED)[name]
    zero = {"stage": min(stage, 3), **{part: {"device": "cpu"} for part in OFFLOADED.get(stage, [])}}
    dataset = Dataset.open(folder / kind)
    start = {"init_from": str(folder / "start")} if "adapters" in sections else {}
    config = Config(
        model=sections["model"] | ({} if kind == "alignment" else {"vocabulary": 200}),
        train={
            "steps": steps,
            "batch_tokens": 12 if kind == "alignment" else 250,
            "micro_batches": MICRO_BATCHES,
            "workers": 0,
            **start,
            **sections.get("train", {}),
        },
        optim={"lr": 0.003, "schedule": "constant", "warmup_steps": 0, "eps": 1e-6, "betas": (0.9, 0.99)},
        adapters=sections.get("adapters", {}),
        deepspeed={"zero_optimization": {**zero, "reduce_bucket_size": 2000}, "bf16": {"enabled": low}},
    )
    return job_spec_of(dataset, config, Run(folder / "unused"), 0)


def write_start(folder: Path) -> None:
    """A run that the case with adapters begins with."""
    trained(folder / "summarization", folder / "start", 1, CASES["adapters"][1]["model"] | {"encoder": "LL"})


def objective_of(brief: JobSpec) -> torch.nn.Module:
    """The objective of a training at its start, without DeepSpeed."""
    config = brief.config
    torch.manual_seed(config.train.seed)
    model = systems.build(config.model)
    if brief.start:
        brief.start.apply(model)
        adapt(model, config.adapters, {*brief.start.new})
    if config.train.recompute:
        recompute_layers(model)
    return systems.objective(config.model, model, config.train.label_smoothing)


def plain_loop(brief: JobSpec, low: bool) -> tuple[dict[str, torch.Tensor], list[float], list[float]]:
    """The gradients of the first step, and losses and gradient norms of all, by torch alone and in one process.

    In bf16 the optimizer moves fp32 copies of the weights, and gradients are summed in fp32.
    """
    settings, config = brief.config.train, brief.config
    objective = objective_of(brief)
    objective = objective.bfloat16() if low else objective
    named = {name: weight for name, weight in objective.named_parameters() if weight.requires_grad}
    masters = [weight.detach().float().clone() for weight in named.values()]
    optimizer = torch.optim.AdamW(masters, config.optim.lr, config.optim.betas, config.optim.eps, weight_decay=0)
    coming, first, losses, norms = batches(brief.train, 0, 1, 0, settings.steps), {}, [], []
    for step in range(settings.steps):
        for master in masters:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for index in range(MICRO_BATCHES):
            batch = next(coming)
            seeds = np.random.SeedSequence([settings.seed, step, index])
            torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
            loss = objective(brief.train.kind.collate(batch.arrays)) * batch.real
            total += float(loss) / batch.weight
            objective.zero_grad()
            (loss / batch.weight).backward()
            for master, weight in zip(masters, named.values(), strict=True):
                master.grad += weight.grad.float()
        losses.append(total)
        norms.append(float(torch.stack([master.grad.norm() for master in masters]).norm()))
        first = first or {name: master.grad.clone() for name, master in zip(named, masters, strict=True)}
        optimizer.step()
        for weight, master in zip(named.values(), masters, strict=True):
            weight.data.copy_(master)
    return first, losses, norms
