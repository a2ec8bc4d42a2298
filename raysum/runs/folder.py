"""The run folder: where the things of one training are, what is best, what is resumable."""

import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.loading import dump, merge, of_published, parse_yaml, read_text
from raysum.config.problems import AnySection, did_you_mean, validate
from raysum.config.sections import Config, TrainConfig
from raysum.data.recipe import RANKER
from raysum.errors import UserError
from raysum.runtime.checksums import SEAL, check, check_sealed, damaged, is_whole, seal, sealed
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url, local, shown
from raysum.runtime.rendering import Shown
from raysum.runtime.run_sync import bring, sync_down
from raysum.runtime.storage import keep_lines, read_json, read_lines, save_tensors, write_json, write_text
from raysum.systems import PAPER, extractive_names, paper_baseline_names

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

_STEP = "step-"
_CHECKPOINT = re.compile(rf"{_STEP}[0-9]{{8,15}}")  # a copy beside it, such as step-00000006.bak, is none
_AVERAGE = re.compile("average:([1-9][0-9]{0,3})")


def fill_checkpoint(folder: Path, weights: dict[str, "Tensor"], state: dict[str, Any]) -> None:
    """Write what every checkpoint has into its ``folder``, and checksums of all that is there."""
    save_tensors(weights, folder / "weights.safetensors")
    write_json(folder / "state.json", {**state, "sealed": True})
    seal(folder)


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: a folder is only named so once everything in it has been written."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix(_STEP))

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @cached_property
    def state(self) -> dict[str, Any]:
        """What was counted when it was written: step, tokens, seconds, workers, stage, dtype; whether it has checksums.
        Raises UserError where that does not read."""
        return check_sealed(read_json(self.path / "state.json"), self.path / "state.json")

    def check(self, *parts: str) -> None:
        """Raises UserError where one of the ``parts``, files or folders, is missing or damaged, or the checksums."""
        if not (self.path / SEAL).exists() and (self.path / "state.json").exists() and self.state.get("sealed"):
            mend = f'put back a copy, or remove "sealed" from {self.path / "state.json"}, to have nothing checked'
            raise damaged(self.path / SEAL, "is missing", mend)
        bring(self.path, *parts)
        check(self.path, *parts)

    @property
    def resumable(self) -> bool:
        """Whether the optimizer's state is still there (kept for the newest checkpoints only)."""
        return (self.path / "engine").is_dir()


class Run:
    """The folder of one training: config, recipe, vocabulary, metrics, checkpoints, alignment, evaluation."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path, self.place = local(path), shown(local(path))  # the place is for people
        self.vocabulary = self.path / "vocabulary.model"
        self.metrics, self.tensorboard = self.path / "metrics.jsonl", self.path / "tensorboard"
        self.evaluation, self.checkpoint_folder = self.path / "evaluation", self.path / "checkpoints"
        self.judgements = self.path / "validations.json"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """An existing run. Raises UserError where ``path`` is not one, or its config does not read."""
        run = cls(sync_down(path))
        if not run.path.exists():
            evaluated = [*extractive_names(), *paper_baseline_names()]
            if str(path) in evaluated:
                raise UserError(
                    f"{path} is a system, not a folder: `raysum evaluate {path} --out FOLDER` saves its results for "
                    f"compare and human; serve and summarize accept {str(path).removesuffix(PAPER)}"
                )
            near = did_you_mean(str(path), extractive_names())
            raise UserError(f"no run folder {path}; {near}train one with `raysum train PRESET data=DATA out={path}`")
        if not run.exists:
            raise UserError(
                of_published(path)
                or f"{path} is not a run folder: it has no config.yaml; name one that `raysum train` made"
            )
        run.check()
        return run

    @classmethod
    def resolve(cls, path: str | os.PathLike[str]) -> "Run":
        """The run at ``path``, or the best of the search there. Raises UserError as ``open``, or if none is there."""
        folder = sync_down(path)
        if (folder / "search.yaml").is_file():
            best = folder / "best.json"
            if not best.is_file():
                raise UserError(f"the search {path} has not ended; go on with it by its `raysum tune` command")
            try:
                found = read_json(best).get("run")
            except (UserError, AttributeError):
                found = None
            if not isinstance(found, str):
                raise damaged(best, "does not say which run is best", "repeat the `raysum tune` command")
            return cls.open(found if is_url(found) else folder / found)
        return cls.open(path)

    @property
    def name(self) -> str:
        """The folder's name, as UTF-8 whatever the locale, for tables and pages."""
        return os.fsencode(self.path.name).decode(errors="replace")

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @cached_property
    def config(self) -> Config:
        # DeepSpeed was not told of clipping by former versions, and so clipped.
        return self._read("config.yaml", Config, {"deepspeed": {"gradient_clipping": 1.0}})

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The manifest's prepare recipe: `summarize` and `serve` apply exactly this to raw text."""
        return check_sealed(read_json(self.path / "recipe.json"), self.path / "recipe.json")

    def check(self) -> None:
        """Raises UserError where the config, the recipe or the vocabulary is not what was written, or does not read."""
        if (self.path / SEAL).exists():
            try:
                check(self.path, "config.yaml", "recipe.json")
            except UserError as damage:
                raise UserError(f"{damage}, or remove {self.path / SEAL} if you changed it yourself") from None
        self.config  # noqa: B018 - reads and checks it now
        told = {"sha256": self.recipe.get("vocabulary_sha256")}
        if told["sha256"] and self.vocabulary.is_file() and not is_whole(self.vocabulary, told):
            such = f", such as {self.config.data}/vocabulary.model" if self.config.data else ""
            raise damaged(self.vocabulary, "is not the vocabulary that the run has", f"put back a copy of it{such}")

    @property
    def alignment(self) -> "Run":
        """The attention predictor's run inside this one; ``.exists`` says whether it was trained."""
        return Run(self.path / "alignment")

    def create(self, config: Config, recipe: dict[str, Any], vocabulary: Path | None) -> None:
        """Write config, recipe, vocabulary and the ranker beside it, first. Raises UserError if it is unwritable."""
        try:
            self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
            (self.path / SEAL).unlink(missing_ok=True)  # it tells of what was there before
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
        """A complete checkpoint that nothing can be trained on from: ``weights`` made elsewhere, and what is known."""
        folder = self.checkpoint_path(step)
        folder.mkdir(parents=True)
        fill_checkpoint(folder, weights, {"step": step, **state})

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        named = (item for item in self.checkpoint_folder.glob(f"{_STEP}*") if _CHECKPOINT.fullmatch(item.name))
        return sorted(map(Checkpoint, filter(Path.is_dir, named)), key=lambda checkpoint: checkpoint.step)

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoint_folder / f"{_STEP}{step:08d}"

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint that training can go on from."""
        return next((c for c in reversed(self.checkpoints()) if c.resumable), None)

    def validations(self, name: str = "valid_loss") -> dict[int, float]:
        """Validation loss, or another figure of that ``name``, by step: from validations.json, whose checksum shows
        damage, or from metrics.jsonl for a run of a former version. Raises UserError if that file is damaged."""
        found = self._read_validations()
        try:
            return {step: float(one[name]) for step, one in found.items() if name in one}
        except (OverflowError, TypeError, ValueError):
            raise self._damaged_validations() from None

    def _read_validations(self) -> dict[int, dict[str, Any]]:
        """The figures of all validations by step. Of several on one step the last one counts."""
        found: dict[int, dict[str, Any]] = {}
        try:
            if not self.judgements.exists():
                for line in read_lines(self.metrics, b'"valid_', 0):
                    if figures := {name: value for name, value in line.items() if name.startswith("valid_")}:
                        found.setdefault(int(line["step"]), {}).update(figures)
                return found
            told = check_sealed(read_json(self.judgements), self.judgements, required=True)["steps"]
            return {int(step): dict(figures) for step, figures in told.items()}
        except UserError as damage:
            other = f", or remove it, to go by {self.metrics.name}" if self.judgements.exists() else ""
            raise UserError(f"{damage}{other}") from None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._damaged_validations() from None

    def _damaged_validations(self) -> UserError:
        file = self.judgements if self.judgements.exists() else self.metrics
        return damaged(file, "has a validation that is no step and number")

    def add_validation(self, step: int, figures: Mapping[str, float]) -> None:
        """Write what the checkpoint of ``step`` is judged by: the best one is selected by it."""
        self._write_validations({**self._read_validations(), step: dict(figures)})

    def rewind(self, step: int) -> None:
        """Remove what metrics.jsonl and validations.json have of steps after ``step``, which training repeats, and torn
        lines."""
        judged = self._read_validations() if self.judgements.exists() else None

        def is_kept(line: dict[str, Any]) -> bool:
            at = line.get("step")
            if not isinstance(at, int | float):
                return True
            unrecorded = "valid_loss" in line and judged is not None and at not in judged  # of a killed writer
            return at <= step and not unrecorded

        keep_lines(self.metrics, is_kept)
        if judged is not None:
            self._write_validations({at: figures for at, figures in judged.items() if at <= step})

    def _write_validations(self, figures: Mapping[int, Mapping[str, float]]) -> None:
        write_json(self.judgements, sealed({"steps": {str(step): figures[step] for step in sorted(figures)}}))

    def validation_scores(self, settings: TrainConfig) -> dict[int, float]:
        """Return the score of each validation by step, the higher the better; NaN counts as minus infinity.

        ``settings`` name the metric: a new run has no config yet.
        """
        scores = {step: settings.worth(value) for step, value in self.validations(settings.judged_by).items()}
        return {step: -math.inf if math.isnan(value) else value for step, value in scores.items()}

    def best(self) -> Checkpoint:
        """The checkpoint that ``train.best_by`` says is best; the newest where none was validated. It may be damaged.

        Raises UserError if the run has no complete checkpoint.
        """
        return self._ranked()[0]

    def _ranked(self) -> list[Checkpoint]:
        """The checkpoints, best first: by their validations, then, newest first, those without one."""
        if not (newest_first := self.checkpoints()[::-1]):
            raise UserError(f"{self.place} has no complete checkpoint yet; train it further with `raysum train`")
        validation_scores = self.validation_scores(self.config.train)
        return sorted(newest_first, key=lambda c: -validation_scores.get(c.step, -math.inf))

    def chosen(self, which: str) -> list[Checkpoint]:
        """The one that :meth:`checkpoint` gives; of ``average:3`` the three best, best first.

        Raises UserError as that, and where there are not so many or one of them is damaged.
        """
        if not (asked := _AVERAGE.fullmatch(which)):
            return [self.checkpoint(which)]
        found = self._ranked()[: int(asked[1])]
        if len(found) < int(asked[1]):
            raise UserError(f"{self.place} has {len(found)} of {asked[1]} checkpoints; train.keep says how many stay")
        for checkpoint in found:
            checkpoint.check(checkpoint.weights.name)
        return found

    def checkpoint(self, which: str = "best") -> Checkpoint:
        """``best``, ``latest`` or a step number, with sound weights: in place of the best or latest one the next.

        Raises UserError naming the steps there are, or what is damaged.
        """
        ranked, found = self._ranked(), {str(c.step): c for c in self.checkpoints()}
        if which not in ("best", "latest", *found):
            there = f"best, latest, average:COUNT and the steps {', '.join(found)}"
            raise UserError(f"{self.place} has no checkpoint {which!r}; it has {there}")
        candidates = [found[which]] if which in found else ranked if which == "best" else [*found.values()][::-1]
        damages: list[str] = []
        for candidate in candidates:
            try:
                candidate.check(candidate.weights.name)
            except UserError as damage:
                damages.append(str(damage))
                continue
            for told in damages:
                say(f"{told}. Step {candidate.step} is used in its place")
            return candidate
        raise UserError(damages[0])

    @property
    def decode(self) -> DecodeConfig:
        """The run's decoding settings: those of its config, changed by what a search found best (decode.yaml)."""
        found = (self.path / "decode.yaml").is_file()
        return self._read("decode.yaml", DecodeConfig, self.config.decode.model_dump()) if found else self.config.decode

    @property
    def extract(self) -> ExtractConfig:
        """How long the summaries of a run that extracts are: what was found best on the valid split (extract.yaml)."""
        found = (self.path / "extract.yaml").is_file()
        return self._read("extract.yaml", ExtractConfig, {}) if found else ExtractConfig()

    def _read(self, name: str, root: type[AnySection], base: dict[str, Any]) -> AnySection:
        values, places = parse_yaml(read_text(self.path / name), str(self.path / name))
        return validate(merge(base, values), places, root)

    def set_decode(self, settings: dict[str, Any]) -> None:
        """Make ``settings`` (decode keys) the ones that evaluate, summarize and serve use."""
        write_text(self.path / "decode.yaml", yaml.safe_dump(settings, sort_keys=False))

    def set_extract(self, settings: dict[str, Any]) -> None:
        write_text(self.path / "extract.yaml", yaml.safe_dump(settings, sort_keys=False))


@dataclass(frozen=True)
class RunResult(Shown):
    """A run that was made."""

    run: Run

    def to_dict(self) -> dict[str, Any]:
        """``run`` (the path), and ``step`` and ``valid_loss`` of its best checkpoint, and what that is best by."""
        best, judged_by = self.run.best(), self.run.config.train.judged_by
        found = {name: self.run.validations(name).get(best.step) for name in ("valid_loss", judged_by)}
        return {"run": self.run.place, "step": best.step, **found}

    def to_pandas(self) -> "DataFrame":
        """The lines of metrics.jsonl."""
        from pandas import DataFrame

        return DataFrame([*read_lines(self.run.metrics)])

    def render(self) -> str:
        steps = f" (the best of {self.run.checkpoints()[-1].step})"
        return "\n".join(f"{key}: {value}{steps * (key == 'step')}" for key, value in self.to_dict().items())
