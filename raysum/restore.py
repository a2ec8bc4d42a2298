"""Models from run folders: the summarizing one, the attention predictor and the ranker beside it."""

from typing import Any

import torch
from safetensors.torch import load_file

from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.models.build import build
from raysum.models.generator import Generator
from raysum.models.specs import RankerSpec, TransformerSpec
from raysum.models.systems.predictor import AttentionPredictor
from raysum.models.systems.ranker import Ranker
from raysum.run import Checkpoint, Run


def restore_generator(run: Run, checkpoint: str, device: torch.device) -> Generator:
    """Raises UserError where the model of ``run`` writes no summaries, or there is no such checkpoint."""
    spec = run.config.model
    if not isinstance(spec, TransformerSpec):
        raise UserError(f"{run.path} writes no summaries: its model is a {spec.system}; name a summarizing run")
    return _restored(run.config, run.checkpoint(checkpoint), device)


def restore_predictor(run: Run, device: torch.device) -> AttentionPredictor | None:
    """The attention predictor of ``run``, None where none was trained."""
    alignment = run.alignment
    if not (alignment.exists and alignment.checkpoints()):
        return None
    return _restored(alignment.config, alignment.best(), device)


def restore_ranker(path: str, vocabulary_sha256: str, device: torch.device) -> Ranker:
    """The ranker trained into ``path``. Raises UserError where that is no ranker's run, or has another vocabulary."""
    run = Run.open(path)
    spec = run.config.model
    if not isinstance(spec, RankerSpec):
        raise UserError(
            f"{path} is no ranker: its model is a {spec.system}; "
            "train one with `raysum train ranker data=DATA out=RUN`, and name that"
        )
    if run.recipe.get("vocabulary_sha256") != vocabulary_sha256:
        raise UserError(
            f"the ranker {path} was trained with another vocabulary than the model; train one on the model's dataset"
        )
    return _restored(run.config, run.best(), device)


def _restored(config: Config, checkpoint: Checkpoint, device: torch.device) -> Any:
    """The model of ``config`` with the weights of ``checkpoint``, in evaluation mode."""
    model = build(config.model)
    try:
        model.load_state_dict(load_file(checkpoint.weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{checkpoint.weights} does not fit the run's config.yaml: {reason}") from None
    return model.to(device).eval()
