"""What each stage of HIBERT's pre-training is worth: its Table 3, on any data."""

from collections.abc import Sequence
from pathlib import Path

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems
from raysum.evaluate.systems import Sentences
from raysum.evaluate.table import Evaluation
from raysum.extract.summarizer import Extractor
from raysum.run import Run
from raysum.train.fit import train


def stages(
    open_domain: str | Path,
    in_domain: str | Path,
    labelled: str | Path,
    out: str | Path,
    preset: str = "hibert_tiny",
    split: str = "test",
    pretraining: Sequence[str] = (),
    tuning: Sequence[str] = (),
) -> Evaluation:
    """``preset`` fine-tuned on ``labelled`` after both stages, one of them, and none, and Lead, scored on a split.

    The datasets to pre-train on, of kind pretraining, have the vocabulary of ``labelled``. ``pretraining`` and
    ``tuning`` are overrides of the trainings (``train.steps=500``). All goes into ``out``; the same call resumes.

    >>> stages("news", "papers_bare", "papers", "out", tuning=["train.steps=400"]).to_pandas()
    """
    folder, dataset = Path(out), Dataset.open(labelled)

    def trained(name: str, kind: str, data: str | Path, changes: Sequence[str], start: Run | None) -> Run:
        begun = [] if start is None else [f"train.start={start.path}"]
        return train(preset + kind, *changes, *begun, data=str(data), out=str(folder / name)).run

    first = trained("pretrained-open", "_pretraining", open_domain, pretraining, None)
    starts = {
        "both": trained("pretrained-both", "_pretraining", in_domain, pretraining, first),
        "open": first,
        "in-domain": trained("pretrained-in-domain", "_pretraining", in_domain, pretraining, None),
        "none": None,
    }
    runs = [trained(name, "", labelled, tuning, start) for name, start in starts.items()]
    extractors = [Extractor.trained(run, LoadConfig()) for run in runs]
    extractors.append(Extractor.of("lead", LoadConfig(decode=extractors[0].settings.model_dump())))
    systems = [Sentences(one.system, one.settings) for one in extractors]
    return compare_systems(
        systems, dataset, split, EvaluateConfig(data=str(labelled), split=split), out=folder / "table"
    )
