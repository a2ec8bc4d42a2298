"""Training the attention predictor of a run, into the run's own folder ``alignment/``."""

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.models.specs import PredictorSpec, TransformerSpec
from raysum.run import Run
from raysum.train.fit import train_on
from raysum.train.labels import write_labels


def train_alignment(config: Config) -> Run:
    """Label ``config.data`` by the best checkpoint of ``config.run``, then train the predictor on these labels.

    Both parts go on where they were, and are skipped where they are done. Returns the predictor's run.
    Raises UserError for a wrong config, run or dataset, and for a model without attention to paragraphs.
    """
    if config.run is None or config.data is None:
        missing = "run=RUN" if config.run is None else "data=DATA"
        raise UserError(f"{missing} is missing; write `raysum train alignment run=RUN data=DATA`")
    if not isinstance(config.model, PredictorSpec):
        raise UserError("the alignment is trained with a predictor, not with a seq2seq model; use the preset alignment")
    run, dataset = Run.open(config.run), Dataset.open(config.data)
    trained = run.config.model
    if not isinstance(trained, TransformerSpec):
        raise UserError(f"{run.path} is no summarizing model, so there is no attention to predict")
    if dataset.vocabulary_hash != run.recipe["vocabulary_sha256"]:
        raise UserError(
            f"{config.data} has another vocabulary than {run.path}; prepare it with --vocab {run.vocabulary}"
        )
    labels = write_labels(run, dataset, config)
    model = fitted(config.model, trained.width)
    return train_on(labels, config.model_copy(update={"model": model, "out": str(run.alignment.path)}), run.alignment)


def fitted(spec: PredictorSpec, width: int) -> PredictorSpec:
    """``spec`` for embeddings of ``width``. Raises UserError where its heads do not divide that."""
    if width % spec.heads:
        raise UserError(f"model.heads={spec.heads} does not divide the width {width} of the run's paragraph embeddings")
    return spec.model_copy(update={"width": width})
