"""The run folder: files of one training, its checkpoints, and which of them are best or resumable."""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.loading import dump, merge, parse_yaml, published_message, read_text
from raysum.config.problems import AnySection, did_you_mean, validate
from raysum.config.sections import Config, TrainConfig
from raysum.data.recipe import RANKER
from raysum.errors import UserError
from raysum.runs import former
from raysum.runtime.checksums import SEAL, check, check_sealed, damaged, is_whole, seal, sealed, write_tensors
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url, local, shown
from raysum.runtime.rendering import Shown
from raysum.runtime.run_sync import bring, sync_down
from raysum.runtime.storage import append_line, keep_lines, read_json, read_lines, write_json, write_text
from raysum.systems import PAPER, extractive_names, paper_baseline_names

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

_STEP, _LONGEST_MESSAGE = "step-", 500  # prefix of a checkpoint's folder, characters of an event's message
_CHECKPOINT = re.compile(rf"{_STEP}[0-9]{{8,15}}")  # does not match copies such as step-00000006.bak
_AVERAGE = re.compile("average:([1-9][0-9]{0,3})")
_VALIDATIONS = TypeAdapter(dict[int, dict[str, float]])


def fill_checkpoint(
    folder: Path, weights: dict[str, "Tensor"], state: dict[str, Any], known: Mapping[str, Any] | None = None
) -> None:
    """Write weights and state into the ``folder`` of a checkpoint, then the checksums of all its files.

    ``known`` are the checksums of files that are already there.
    """
    checksum = write_tensors(weights, folder / "weights.safetensors")
    write_json(folder / "state.json", {**state, "sealed": True})
    seal(folder, known={**(known or {}), "weights.safetensors": checksum})


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: its folder gets this name after everything in it is written."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix(_STEP))

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @cached_property
    def state(self) -> dict[str, Any]:
        """The counts at this step, and ``sealed`` if there are checksums. Raises UserError if the file is damaged."""
        return former.STATE | check_sealed(read_json(self.path / "state.json"), self.path / "state.json")

    def check(self, *parts: str) -> None:
        """Raises UserError if one of the ``parts`` (files or folders) or the checksums are missing or damaged."""
        if not (self.path / SEAL).exists() and (self.path / "state.json").exists() and self.state.get("sealed"):
            fix = f'restore it from a copy, or remove "sealed" from {self.path / "state.json"} to skip the check'
            raise damaged(self.path / SEAL, "is missing", fix)
        bring(self.path, *parts)
        check(self.path, *parts)

    @property
    def resumable(self) -> bool:
        """Whether it still has the optimizer's state (only the newest checkpoints keep it)."""
        return (self.path / "engine").is_dir()


def split_sound(
    checkpoints: Iterable[Checkpoint], count: int, check: Callable[[Checkpoint], None]
) -> tuple[list[Checkpoint], list[tuple[Path, str]]]:
    """Return the first ``count`` checkpoints that ``check`` accepts, and paths and messages of the damaged ones."""
    sound, damages = list[Checkpoint](), list[tuple[Path, str]]()
    for checkpoint in checkpoints:
        if len(sound) == count:
            break
        try:
            check(checkpoint)
            sound.append(checkpoint)
        except UserError as damage:
            damages.append((checkpoint.path, str(damage)))
    return sound, damages


class Event(BaseModel):
    """An event of a training. ``time`` is in seconds since 1970. A start has the host of each worker, slow has one."""

    time: float = Field(ge=0, le=1e12, allow_inf_nan=False)
    event: Literal["start", "checkpoint", "failure", "slow"]
    step: int = Field(0, ge=0, le=10**15)
    hosts: list[str] = []
    message: str = ""


class Run:
    """The folder of one training: config, recipe, vocabulary, metrics, checkpoints, alignment, evaluation."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path, self.place = local(path), shown(local(path))  # the place is for messages
        self.vocabulary = self.path / "vocabulary.model"
        self.metrics, self.tensorboard = self.path / "metrics.jsonl", self.path / "tensorboard"
        self.evaluation, self.checkpoint_folder = self.path / "evaluation", self.path / "checkpoints"
        self.validations_file, self.events_file = self.path / "validations.json", self.path / "events.jsonl"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Return an existing run. Raises UserError if ``path`` is not a run folder, or is damaged."""
        run = cls(sync_down(path))
        if not run.path.exists():
            if str(path) in [*extractive_names(), *paper_baseline_names()]:
                way = f"`raysum evaluate {path} --out FOLDER` saves its results"
                served = str(path).removesuffix(PAPER)
                raise UserError(f"{path} is a system, not a folder: {way}, and serve and summarize accept {served}")
            near = did_you_mean(str(path), extractive_names())
            raise UserError(f"no run folder {path}; {near}train one with `raysum train PRESET data=DATA out={path}`")
        if not run.exists:
            message = f"{path} has no config.yaml; name a run folder that `raysum train` made"
            raise UserError(published_message(path) or message)
        run.check()
        return run

    @classmethod
    def resolve(cls, path: str | os.PathLike[str]) -> "Run":
        """Return the run, or the best run of the search, at ``path``. Raises UserError if the search has not ended."""
        folder = sync_down(path)
        if (folder / "search.yaml").is_file():
            best = folder / "best.json"
            if not best.is_file():
                raise UserError(f"the search {path} has not ended; repeat its `raysum tune` command to resume it")
            try:
                run = read_json(best)["run"]
                path = run if is_url(run) else folder / run
            except (KeyError, TypeError, UserError):
                raise damaged(best, "does not name the best run", "repeat the `raysum tune` command") from None
        return cls.open(path)

    @property
    def name(self) -> str:
        """The folder name for tables and pages, as UTF-8 in every locale."""
        return os.fsencode(self.path.name).decode(errors="replace")

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def search(self) -> Path | None:
        """The folder of the search, if the run is one of its trials."""
        return self.path.parents[1] if self.path.parent.name == "trials" else None

    @cached_property
    def config(self) -> Config:
        return self._read("config.yaml", Config, former.CONFIG)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The prepare recipe of the dataset's manifest. `summarize` and `serve` apply it to raw text."""
        return check_sealed(read_json(self.path / "recipe.json"), self.path / "recipe.json")

    def check(self) -> None:
        """Raises UserError if the config, the recipe or the vocabulary is damaged."""
        if (self.path / SEAL).exists():
            try:
                check(self.path, "config.yaml", "recipe.json")
            except UserError as damage:
                raise UserError(f"{damage}, or remove {self.path / SEAL} if you changed it yourself") from None
        self.config  # noqa: B018 - reads and checks it now
        checksum = {"sha256": self.recipe.get("vocabulary_sha256")}
        if checksum["sha256"] and self.vocabulary.is_file() and not is_whole(self.vocabulary, checksum):
            such = f", such as {self.config.data}/vocabulary.model" if self.config.data else ""
            raise damaged(self.vocabulary, "is not the vocabulary that the run has", f"put back a copy of it{such}")

    def check_vocabulary(self, sha256: str | None, place: str = "the data") -> None:
        """Raises UserError if the run was trained with another vocabulary than the one of ``place``."""
        if self.recipe.get("vocabulary_sha256") != sha256:
            fix = f"prepare the data with --vocab {self.vocabulary}"
            raise UserError(f"{self.place} was trained with another vocabulary than that of {place}; {fix}")

    @property
    def alignment(self) -> "Run":
        """The run of the attention predictor, inside this one. It may not exist."""
        return Run(self.path / "alignment")

    def create(self, config: Config, recipe: dict[str, Any], vocabulary: Path | None) -> None:
        """Write config, recipe, vocabulary and ranker. Raises UserError if the folder is not writable."""
        try:
            self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
            (self.path / SEAL).unlink(missing_ok=True)  # its checksums are of older files
            if vocabulary is not None:
                shutil.copyfile(vocabulary, self.vocabulary)
                if recipe.get("ranker_sha256"):
                    shutil.copyfile(vocabulary.with_name(RANKER), self.path / RANKER)
            write_json(self.path / "recipe.json", recipe)
            write_text(self.path / "config.yaml", dump(config))
            seal(self.path, ["config.yaml", "recipe.json"])
            self.config, self.recipe = config, recipe
        except OSError as error:
            raise UserError(f"cannot write the run folder {self.path}: {error.strerror}; choose another out=") from None

    def add_weights(self, step: int, weights: dict[str, "Tensor"], state: dict[str, Any]) -> None:
        """Write a complete checkpoint without engine state, which cannot be resumed, such as imported ``weights``."""
        folder = self.checkpoint_path(step)
        folder.mkdir(parents=True)
        fill_checkpoint(folder, weights, {"step": step, **state})

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        matching = (item for item in self.checkpoint_folder.glob(f"{_STEP}*") if _CHECKPOINT.fullmatch(item.name))
        return sorted(map(Checkpoint, filter(Path.is_dir, matching)), key=lambda checkpoint: checkpoint.step)

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoint_folder / f"{_STEP}{step:08d}"

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint that training can resume from, or None."""
        return next((c for c in reversed(self.checkpoints()) if c.resumable), None)

    def validations(self, name: str = "valid_loss") -> dict[int, float]:
        """Return the validation loss, or the figure ``name``, by step. Raises UserError if the file is damaged."""
        return {step: figures[name] for step, figures in self._read_validations().items() if name in figures}

    def figures(self, step: int) -> dict[str, float]:
        """Return the figures of the validation at ``step``, if any. Raises UserError if the file is damaged."""
        return self._read_validations().get(step, {})

    def _read_validations(self) -> dict[int, dict[str, float]]:
        """Return the figures of all validations by step."""
        file = self.validations_file if self.validations_file.exists() else self.metrics
        try:
            if file == self.metrics:
                return _VALIDATIONS.validate_python(former.read_validations(file))
            return _VALIDATIONS.validate_python(check_sealed(read_json(file), file, required=True).get("steps"))
        except (KeyError, TypeError, ValidationError):
            raise damaged(file, "has a validation without a valid step and value") from None
        except UserError as damage:
            fallback = "" if file == self.metrics else f", or remove it, so that {self.metrics.name} is used"
            raise UserError(f"{damage}{fallback}") from None

    def add_validation(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the validation ``figures`` of ``step``, which select the best checkpoint."""
        self._write_validations({**self._read_validations(), step: figures})

    def rewind(self, step: int) -> None:
        """Remove incomplete lines and the steps after ``step``, which training repeats, from the metrics files."""
        validations = {at: figures for at, figures in self._read_validations().items() if at <= step}

        def is_kept(line: dict[str, Any]) -> bool:
            at = line.get("step")
            if not isinstance(at, int | float):
                return True
            return at <= step and ("valid_loss" not in line or at in validations)  # a kill may leave only the line

        keep_lines(self.metrics, is_kept)
        self._write_validations(validations)

    def _write_validations(self, figures: Mapping[int, Mapping[str, float]]) -> None:
        write_json(self.validations_file, sealed({"steps": {str(step): figures[step] for step in sorted(figures)}}))

    def validation_scores(self, settings: TrainConfig) -> dict[int, float]:
        """Return the score of each validation by step, the higher the better; NaN counts as minus infinity.

        ``settings`` name the metric: a new run has no config yet.
        """
        values = self.validations(settings.best_metric)
        scores = {step: settings.validation_score(value) for step, value in values.items()}
        return {step: -math.inf if math.isnan(score) else score for step, score in scores.items()}

    def best(self) -> Checkpoint:
        """Return the best checkpoint by ``train.best_by``, or the newest if none was validated. It may be damaged.

        Raises UserError if the run has no complete checkpoint.
        """
        return self._ranked()[0]

    def _ranked(self) -> list[Checkpoint]:
        """Return the checkpoints, best first; those without a validation last, newest first."""
        if not (newest_first := self.checkpoints()[::-1]):
            raise UserError(f"{self.place} has no complete checkpoint yet; train it further with `raysum train`")
        validation_scores = self.validation_scores(self.config.train)
        return sorted(newest_first, key=lambda c: -validation_scores.get(c.step, -math.inf))

    def checkpoint(self, which: str = "best") -> Checkpoint:
        """Return the checkpoint ``best``, ``latest`` or a step. Raises UserError as :meth:`select_checkpoints`."""
        return self.select_checkpoints(which)[0]

    def candidates(self, which: str) -> list[Checkpoint]:
        """Return the checkpoints that ``best``, ``latest`` or a step names, the first choice first, unchecked.

        Raises UserError that lists the steps of the run if there is none.
        """
        orders = {str(c.step): [c] for c in self.checkpoints()}
        available = f"best, latest, average:COUNT and the steps {', '.join(orders)}"
        orders |= {"best": self._ranked(), "latest": self.checkpoints()[::-1]}
        if which not in orders:
            raise UserError(f"{self.place} has no checkpoint {which!r}; it has {available}")
        return orders[which]

    def select_checkpoints(self, which: str) -> list[Checkpoint]:
        """Return the checkpoints to average: the three best for ``average:3``, otherwise one.

        Their weights are undamaged: the next checkpoint takes the place of a damaged one, except for a step. Raises
        UserError that lists the steps of the run if there is no such checkpoint, or names the damage.
        """
        average = _AVERAGE.fullmatch(which)
        candidates = self.candidates("best" if average else which)
        count = int(average[1]) if average else 1
        sound, damages = split_sound(candidates, count, lambda checkpoint: checkpoint.check(checkpoint.weights.name))
        if len(sound) < count:
            too_few = f"{self.place} has {len(sound)} of {count} checkpoints; train.keep sets how many are kept"
            raise UserError(damages[0][1] if damages else too_few)
        for _, message in damages:
            say(f"{message}. Step {sound[-1].step} is used instead")
        return sound

    def add_event(self, event: str, **values: Any) -> None:
        """Append an event. A long message is truncated."""
        message = {"message": values["message"][:_LONGEST_MESSAGE]} if "message" in values else {}
        append_line(self.events_file, {"time": time.time(), "event": event, **values, **message})

    def events(self) -> list[Event]:
        """Return the events; none for a run of an earlier version. Raises UserError if the file is damaged."""
        try:
            return [Event.model_validate(line) for line in read_lines(self.events_file)]
        except ValidationError as error:
            raise damaged(self.events_file, f"is damaged: {error.errors()[0]['msg']}") from None

    @property
    def decode(self) -> DecodeConfig:
        """The run's decoding settings: those of its config, changed by the best ones of a search (decode.yaml)."""
        return self._read("decode.yaml", DecodeConfig, self.config.decode.model_dump())

    @property
    def extract(self) -> ExtractConfig:
        """The summary length of an extractor, which training chose on the valid split (extract.yaml)."""
        return self._read("extract.yaml", ExtractConfig, {})

    def _read(self, name: str, root: type[AnySection], base: dict[str, Any]) -> AnySection:
        file, is_needed = self.path / name, root is Config
        values, lines = parse_yaml(read_text(file), str(file)) if is_needed or file.is_file() else ({}, {})
        return validate(root.with_current_names(merge(base, values)), lines, root)

    def set_decode(self, settings: dict[str, Any]) -> None:
        """Write the decoding ``settings`` that evaluate, summarize and serve use."""
        write_text(self.path / "decode.yaml", yaml.safe_dump(settings, sort_keys=False))

    def set_extract(self, settings: dict[str, Any]) -> None:
        write_text(self.path / "extract.yaml", yaml.safe_dump(settings, sort_keys=False))


@dataclass(frozen=True)
class RunResult(Shown):
    """The run that a training wrote."""

    run: Run

    def to_dict(self) -> dict[str, Any]:
        """Return ``run`` (the path), and the ``step``, ``valid_loss`` and selecting metric of the best checkpoint."""
        best, metric = self.run.best(), self.run.config.train.best_metric
        figures = {name: self.run.validations(name).get(best.step) for name in ("valid_loss", metric)}
        return {"run": self.run.place, "step": best.step, **figures}

    def to_pandas(self) -> "DataFrame":
        """Return the lines of metrics.jsonl."""
        from pandas import DataFrame

        return DataFrame([*read_lines(self.run.metrics)])

    def render(self) -> str:
        steps = f" (the best of {self.run.checkpoints()[-1].step})"
        return "\n".join(f"{key}: {value}{steps * (key == 'step')}" for key, value in self.to_dict().items())
