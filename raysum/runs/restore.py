"""Load the weights of runs and published models into models. No other module does this."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum import systems
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.checksums import check
from raysum.runtime.storage import load_tensors, open_tensors, read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PUBLISHED = "config.json"  # in every folder of published weights, and in no run


def restore(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """Return the model of ``run`` in evaluation mode with the weights of a checkpoint.

    ``checkpoint`` is ``best``, ``latest``, a step, or ``average:3``, the mean weights of the three best.
    Raises UserError if there is no such checkpoint, or its weights do not fit the model.
    """
    first, *others = run.select_checkpoints(checkpoint)
    weights = load_tensors(first.weights)
    for number, other in enumerate(others, 2):
        for name, value in load_tensors(other.weights).items():
            weights[name] += (value - weights[name]) / number
    return fill(systems.build(run.config.model), weights, first.weights).to(device).eval()


def restore_generator(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """Return the model as :func:`restore` does. Raises UserError also if the model of ``run`` writes no summaries."""
    spec = run.config.model
    if not spec.summarizes:
        raise UserError(f"{run.place} writes no summaries: its model is a {spec.system}; name a summarizing run")
    return restore(run, checkpoint, device)


def restore_extractor(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """Return the model as :func:`restore` does. Raises UserError also if the model of ``run`` scores no sentences."""
    if not run.config.model.extracts:
        raise UserError(f"{run.place} extracts no sentences; name a run of such a model, trained on labelled sentences")
    return restore(run, checkpoint, device)


def restore_predictor(run: Run, device: "torch.device") -> Any:
    """Return the attention predictor of ``run``, or None if it was not trained."""
    trained = run.alignment.exists and run.alignment.checkpoints()
    return restore(run.alignment, "best", device) if trained else None


def restore_ranker(path: str, vocabulary_sha256: str, device: "torch.device") -> Any:
    """Return the ranker of the run ``path``. Raises UserError if it is no ranker, or has another vocabulary."""
    run = Run.open(path)
    spec = run.config.model
    if not spec.ranks:
        raise UserError(
            f"{path} is no ranker: its model is a {spec.system}; "
            "train one with `raysum train ranker data=DATA out=RUN`, and name that"
        )
    if run.recipe.get("vocabulary_sha256") != vocabulary_sha256:
        raise UserError(
            f"the ranker {path} was trained with another vocabulary; train one on a dataset with the same vocabulary"
        )
    return restore(run, "best", device)


def fill(model: Any, weights: Mapping[str, "Tensor"], origin: str | Path) -> Any:
    """Load all ``weights`` into ``model`` and return it. Raises UserError with ``origin`` if they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[-1].split())
        raise UserError(f"{origin} does not fit the model of its config: {reason}") from None
    return model


@dataclass(frozen=True)
class _Donor:
    """Weights that another training can start from."""

    name: str
    weights: Path
    vocabulary: Path
    vocabulary_sha256: str | None
    names_for: Callable[[Iterable[str], systems.Spec], dict[str | None, str]]  # a model's parameters: the donor's
    untrained: Collection[str] = ()  # parameters that were added to published weights and never trained


def _run_donor(path: str) -> _Donor:
    run = Run.open(path)
    checkpoint, spec = run.checkpoint("best"), run.config.model
    return _Donor(
        f"{run.path}, step {checkpoint.step}",
        checkpoint.weights,
        run.vocabulary,
        run.recipe.get("vocabulary_sha256"),
        lambda names, other: {spec.name_in(name, other): name for name in names},
        checkpoint.state.get("untrained", ()),
    )


def _published_donor(path: str) -> _Donor:
    """Return the donor in a folder with config.json, model.safetensors and tokenizer.json. Nothing is unpickled."""
    folder = Path(path).expanduser().absolute()
    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UserError(
                f"{path} lacks {name}: published weights are read from config.json, model.safetensors and "
                "tokenizer.json (a .bin file may run code when it is read); transformers' save_pretrained writes these"
            )
    check(folder, _PUBLISHED, "model.safetensors")
    config, vocabulary = read_json(folder / _PUBLISHED), folder / "tokenizer.json"
    if isinstance(config, dict) and config.get("is_encoder_decoder"):
        raise UserError(
            f"training cannot start from {path}; import it with `raysum import huggingface {path}`, and name that run"
        )

    def names_for(names: Iterable[str], spec: systems.Spec) -> dict[str | None, str]:
        try:
            return spec.published(config, names)
        except UserError as reason:
            raise UserError(f"{path} {reason}") from None

    hashed = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    return _Donor(str(folder), folder / "model.safetensors", vocabulary, hashed, names_for)


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
        donor = _published_donor(path) if is_published else _run_donor(path)
        if donor.vocabulary_sha256 != vocabulary_sha256:
            raise UserError(
                f"{path} was trained with another vocabulary, so its weights do not fit; "
                f"prepare the data with --vocab {donor.vocabulary}"
            )
        needed = {name: list(value.shape) for name, value in systems.parameters(spec).items()}
        with open_tensors(donor.weights) as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        names = donor.names_for([*shapes], spec)
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
        """Load the matching weights into ``model``."""
        weights = load_tensors(self.weights)
        model.load_state_dict({name: weights[own] for name, own in self.loaded.items()}, strict=False)


def listed_names(names: Iterable[str], others: Iterable[str]) -> str:
    """Return ``names`` as text: ``module.*`` for modules without any of ``others``, ``encoder.1,3-5.*`` for layers."""
    inside = {prefix for name in others for prefix in accumulate(name.split("."), "{}.{}".format)}
    numbers: dict[str, list[int]] = {}
    for name in names:
        above = (p for p in accumulate(name.split("."), "{}.{}".format) if p not in inside and p != name)
        short = next((f"{p}.*" for p in above), name)
        number = re.search(r"(?<=\.)\d+(?=\.)", short)
        form = f"{short[: number.start()]}#{short[number.end() :]}" if number else short
        numbers.setdefault(form, []).extend([int(number[0])] if number else [])
    return ", ".join(form.replace("#", _ranges(layers), 1) for form, layers in numbers.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return ``1,3-5`` for 1, 3, 4, 5."""
    runs: list[list[int]] = []
    for number in sorted({*numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
