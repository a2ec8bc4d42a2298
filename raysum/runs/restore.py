"""Load the weights of runs and published models into models. No other module does this."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raysum import systems
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.checksums import SEAL, check
from raysum.runtime.remote import fetch, url_of
from raysum.runtime.run_sync import bring
from raysum.runtime.storage import load_tensors, open_tensors, read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PUBLISHED = "config.json"  # in every folder of published weights, and in no run
_REFUSALS = {
    "summarizes": "writes no summaries: its model is a {}; name a summarizing run",
    "extracts": "extracts no sentences: its model is a {}; name a run trained on labelled sentences",
    "ranks": "is no ranker: its model is a {}; name a run of `raysum train ranker data=DATA out=RUN`",
}


def restore(run: Run, checkpoint: str, device: "torch.device", ability: str = "") -> Any:
    """Return the model of ``run`` in evaluation mode with the weights of a checkpoint.

    ``checkpoint`` is ``best``, ``latest``, a step, or ``average:3``, the mean weights of the three best.
    Raises UserError if there is no such checkpoint, its weights do not fit the model, or it lacks the ``ability``.
    """
    spec = run.config.model
    if ability and not getattr(spec, ability):
        raise UserError(f"{run.place} {_REFUSALS[ability].format(spec.system)}")
    first, *others = run.select_checkpoints(checkpoint)
    weights = load_tensors(first.weights)
    for number, other in enumerate(others, 2):
        for name, value in load_tensors(other.weights).items():
            weights[name] += (value - weights[name]) / number
    return fill(systems.build(spec), weights, first.weights).to(device).eval()


def restore_predictor(run: Run, device: "torch.device") -> Any:
    """Return the attention predictor of ``run``, or None if it was not trained."""
    trained = run.alignment.exists and run.alignment.checkpoints()
    return restore(run.alignment, "best", device) if trained else None


def restore_ranker(path: str, vocabulary_sha256: str, device: "torch.device") -> Any:
    """Return the ranker of the run ``path``. Raises UserError if it is no ranker, or has another vocabulary."""
    run = Run.open(path)
    model = restore(run, "best", device, "ranks")
    run.check_vocabulary(vocabulary_sha256)
    return model


def fill(model: Any, weights: Mapping[str, "Tensor"], origin: str | Path) -> Any:
    """Load all ``weights`` into ``model`` and return it. Raises UserError with ``origin`` if they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[-1].split())
        raise UserError(f"{origin} does not fit the model of its config; copy the run again: {reason}") from None
    return model


class _Donor(NamedTuple):
    """Weights that another training can start from."""

    name: str
    weights: Path
    names: Mapping[str | None, str]  # of the parameters of the other model: those in the file
    untrained: Collection[str] = ()  # parameters that were added to published weights and never trained


def _run_donor(path: str, spec: systems.Spec, vocabulary_sha256: str) -> _Donor:
    run = Run.open(path)
    run.check_vocabulary(vocabulary_sha256)
    checkpoint, own = run.checkpoint(), run.config.model
    names = {own.name_in(name, spec): name for name in _shapes(checkpoint.weights)}
    untrained = checkpoint.state.get("untrained", ())
    return _Donor(f"{run.path}, step {checkpoint.step}", checkpoint.weights, names, untrained)


def _published_donor(path: str, spec: systems.Spec, vocabulary_sha256: str) -> _Donor:
    """Return the donor in a folder with config.json, model.safetensors and tokenizer.json. Nothing is unpickled."""
    folder = Path(path).expanduser().absolute()
    weights, vocabulary = folder / "model.safetensors", folder / "tokenizer.json"
    for file in (weights, vocabulary):
        if not file.is_file():
            fix = "write it by transformers' save_pretrained (a .bin file may run code)"
            raise UserError(f"{path} lacks {file.name}: {fix}")
    check(folder, _PUBLISHED, weights.name)
    config = read_json(folder / _PUBLISHED)
    if isinstance(config, dict) and config.get("is_encoder_decoder"):
        fix = f"import it with `raysum import huggingface {path}`, and name that run"
        raise UserError(f"training cannot start from {path}; {fix}")
    if hashlib.sha256(vocabulary.read_bytes()).hexdigest() != vocabulary_sha256:
        raise UserError(f"{path} was trained with another vocabulary; prepare the data with --vocab {vocabulary}")
    try:
        return _Donor(str(folder), weights, spec.published(config, _shapes(weights)))
    except UserError as reason:
        raise UserError(f"{path} {reason}") from None


def _shapes(weights: Path) -> dict[str, list[int]]:
    with open_tensors(weights) as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - not a mapping


@dataclass(frozen=True)
class Start:
    """The weights that a new training starts from: those of a run or published model that match by name and shape."""

    origin: str  # for messages
    weights: Path
    loaded: dict[str, str]  # parameters of the model, and their names in the file
    missing: list[str]  # parameters of the model that are not in the file, or have another shape there
    unused: list[str]  # parameters of the file that are not in the model
    untrained: list[str]  # loaded parameters that were never trained

    @classmethod
    def of(cls, path: str, spec: systems.Spec, vocabulary_sha256: str) -> "Start":
        """Return the start from the best checkpoint of the run ``path``, or from the published weights there.

        Raises UserError if ``path`` is neither, has another vocabulary, or shares no matrix with the model of ``spec``.
        """
        is_published = (Path(path).expanduser() / _PUBLISHED).is_file()
        donor = (_published_donor if is_published else _run_donor)(path, spec, vocabulary_sha256)
        needed = {name: list(value.shape) for name, value in systems.parameters(spec).items()}
        names, shapes = donor.names, _shapes(donor.weights)
        loaded = {name: names[name] for name in needed if name in names and shapes[names[name]] == needed[name]}
        if not any(len(needed[name]) > 1 for name in loaded):
            raise UserError(f"no matrix of {path} has the name and shape of one of this model; remove train.init_from")
        unused = [name for name in shapes if name not in loaded.values()]
        missing = [name for name in needed if name not in loaded]
        untrained = [name for name, own in loaded.items() if own in donor.untrained]
        return cls(donor.name, donor.weights, loaded, missing, unused, untrained)

    @property
    def new(self) -> list[str]:
        """The parameters of the model that were never trained."""
        return [*self.missing, *self.untrained]

    def __str__(self) -> str:
        trained = [name for name in self.loaded if name not in self.untrained]
        parts = [f"{len(trained)} tensors are loaded from {self.origin}"]
        parts += [f"new and untrained: {listed_names(self.new, trained)}"] if self.new else []
        parts += [f"unused: {listed_names(self.unused, [*self.loaded.values()])}"] if self.unused else []
        return "; ".join(parts)

    def apply(self, model: Any) -> None:
        """Load the matching weights into ``model``. A host without those of a run on a store downloads them first."""
        if url_of(self.weights):
            fetch(self.weights.with_name(SEAL))
            bring(self.weights.parent, self.weights.name)
        weights = load_tensors(self.weights)
        model.load_state_dict({name: weights[own] for name, own in self.loaded.items()}, strict=False)


def listed_names(names: Iterable[str], others: Iterable[str]) -> str:
    """Return ``names`` as text: ``module.*`` for modules without any of ``others``, ``encoder.1,3-5.*`` for layers."""
    inside = {prefix for name in others for prefix in accumulate(name.split("."), "{}.{}".format)}
    layers: dict[tuple[str, ...], set[int]] = {}
    for name in names:
        above = (p for p in accumulate(name.split("."), "{}.{}".format) if p not in inside and p != name)
        short = next((f"{p}.*" for p in above), name)
        before, *number = re.split(r"(?<=\.)(\d+)(?=\.)", short, maxsplit=1)
        layers.setdefault((before, *number[1:]), set()).update(map(int, number[:1]))
    return ", ".join(_ranges(numbers).join(around) if numbers else around[0] for around, numbers in layers.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return ``1,3-5`` for 1, 3, 4, 5."""
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    parts = [[str(number) for _, number in run] for _, run in runs]
    return ",".join("-".join(dict.fromkeys((part[0], part[-1]))) for part in parts)
