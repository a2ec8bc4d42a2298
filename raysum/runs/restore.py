"""A run's models, ready: the one place where weights are put into a model."""

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

_PUBLISHED = "config.json"  # which every folder of published weights has, and no run


def restore(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """The model of ``run`` in evaluation mode, with the weights of a checkpoint: ``best``, ``latest``, a step, or
    ``average:3``, the mean of those of the three best.

    Raises UserError where there is no such checkpoint, or its weights are of another model.
    """
    first, *others = run.chosen(checkpoint)
    weights = load_tensors(first.weights)
    for number, other in enumerate(others, 2):
        for name, value in load_tensors(other.weights).items():
            weights[name] += (value - weights[name]) / number
    return fill(systems.build(run.config.model), weights, first.weights).to(device).eval()


def restore_generator(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """:func:`restore`; raises UserError where the model of ``run`` writes no summaries, too."""
    spec = run.config.model
    if not spec.summarizes:
        raise UserError(f"{run.place} writes no summaries: its model is a {spec.system}; name a summarizing run")
    return restore(run, checkpoint, device)


def restore_extractor(run: Run, checkpoint: str, device: "torch.device") -> Any:
    """:func:`restore`; raises UserError where the model of ``run`` scores no sentences."""
    if not run.config.model.extracts:
        raise UserError(f"{run.place} extracts no sentences; name a run of such a model, trained on labelled sentences")
    return restore(run, checkpoint, device)


def restore_predictor(run: Run, device: "torch.device") -> Any:
    """The attention predictor of ``run``, None where none was trained."""
    trained = run.alignment.exists and run.alignment.checkpoints()
    return restore(run.alignment, "best", device) if trained else None


def restore_ranker(path: str, vocabulary_sha256: str, device: "torch.device") -> Any:
    """The ranker trained into ``path``. Raises UserError where that is no ranker's run, or has another vocabulary."""
    run = Run.open(path)
    spec = run.config.model
    if not spec.ranks:
        raise UserError(
            f"{path} is no ranker: its model is a {spec.system}; "
            "train one with `raysum train ranker data=DATA out=RUN`, and name that"
        )
    if run.recipe.get("vocabulary_sha256") != vocabulary_sha256:
        raise UserError(
            f"the ranker {path} was trained with another vocabulary; train one on a dataset that has the same one"
        )
    return restore(run, "best", device)


def fill(model: Any, weights: Mapping[str, "Tensor"], origin: str | Path) -> Any:
    """``model`` with all its ``weights``. Raises UserError naming ``origin`` where they are another model's."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[-1].split())
        raise UserError(f"{origin} does not fit the model that its config tells: {reason}") from None
    return model


@dataclass(frozen=True)
class _Donor:
    """Weights that another training may begin with."""

    name: str
    weights: Path
    vocabulary: Path
    vocabulary_sha256: str | None
    serving: Callable[[Iterable[str], systems.Spec], dict[str | None, str]]  # by parameters of a model: the donor's
    untrained: Collection[str] = ()  # parameters that were put beside those of published weights


def _run(path: str) -> _Donor:
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


def _published(path: str) -> _Donor:
    """Of a folder with config.json, model.safetensors and tokenizer.json; nothing is unpickled."""
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
        raise UserError(f"{path} begins no training; name the run that `raysum import huggingface {path}` makes of it")

    def serving(names: Iterable[str], spec: systems.Spec) -> dict[str | None, str]:
        try:
            return spec.published(config, names)
        except UserError as reason:
            raise UserError(f"{path} {reason}") from None

    hashed = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    return _Donor(str(folder), folder / "model.safetensors", vocabulary, hashed, serving)


@dataclass(frozen=True)
class Start:
    """The weights that a new training begins with: what its model takes over by name and shape from those of a run, or
    of a folder of published weights."""

    origin: str  # for people
    weights: Path
    taken: dict[str, str]  # parameters of the model, and what they are called in the file
    fresh: list[str]  # parameters of the model that the file does not have, or in another shape
    unused: list[str]  # parameters of the file that the model does not have
    untrained: list[str]  # parameters of the model that are in the file, and that nothing has trained yet

    @classmethod
    def of(cls, path: str, spec: systems.Spec, vocabulary_sha256: str) -> "Start":
        """From the best checkpoint of the run ``path``, or the published weights there, for the model of ``spec``.

        Raises UserError where that is neither, is of another vocabulary, or has no parameter in common.
        """
        is_published = (Path(path).expanduser() / _PUBLISHED).is_file()
        donor = _published(path) if is_published else _run(path)
        if donor.vocabulary_sha256 != vocabulary_sha256:
            raise UserError(
                f"{path} was trained with another vocabulary, so its weights are of no use here; "
                f"prepare the data with --vocab {donor.vocabulary}"
            )
        wanted = {name: list(value.shape) for name, value in systems.parameters(spec).items()}
        with open_tensors(donor.weights) as file:
            found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        serving = donor.serving([*found], spec)
        taken = {name: serving[name] for name in wanted if name in serving and found[serving[name]] == wanted[name]}
        if not any(len(wanted[name]) > 1 for name in taken):
            raise UserError(f"no matrix of {path} has the name and shape of one of this model: train.start is useless")
        unused = [name for name in found if name not in taken.values()]
        fresh = [name for name in wanted if name not in taken]
        untrained = [name for name, own in taken.items() if own in donor.untrained]
        return cls(donor.name, donor.weights, taken, fresh, unused, untrained)

    @property
    def new(self) -> list[str]:
        """The parameters of the model that have learned nothing yet."""
        return [*self.fresh, *self.untrained]

    def __str__(self) -> str:
        trained = [name for name in self.taken if name not in self.untrained]
        parts = [f"{len(trained)} tensors begin as those of {self.origin}"]
        parts += [f"new, with nothing loaded: {listed(self.new, trained)}"] if self.new else []
        parts += [f"left out are its {listed(self.unused, [*self.taken.values()])}"] if self.unused else []
        return "; ".join(parts)

    def apply(self, model: Any) -> None:
        """Put the weights that are taken over into ``model``."""
        weights = load_tensors(self.weights)
        model.load_state_dict({name: weights[own] for name, own in self.taken.items()}, strict=False)


def listed(names: Iterable[str], others: Iterable[str]) -> str:
    """The names, as ``module.*`` where a whole module is among them and nothing of it among ``others``; those of
    several layers together: ``encoder.1,3-5.*``."""
    inside = {prefix for name in others for prefix in accumulate(name.split("."), "{}.{}".format)}
    numbers: dict[str, list[int]] = {}
    for name in names:
        above = (p for p in accumulate(name.split("."), "{}.{}".format) if p not in inside and p != name)
        short = next((f"{p}.*" for p in above), name)
        number = re.search(r"(?<=\.)\d+(?=\.)", short)
        form = f"{short[: number.start()]}#{short[number.end() :]}" if number else short
        numbers.setdefault(form, []).extend([int(number[0])] if number else [])
    return ", ".join(form.replace("#", _ranges(found), 1) for form, found in numbers.items())


def _ranges(numbers: Iterable[int]) -> str:
    """``1,3-5`` of 1, 3, 4, 5."""
    runs: list[list[int]] = []
    for number in sorted({*numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
