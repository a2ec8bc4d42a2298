"""Evaluations on disk: written without gaps, and read into validated objects."""

import json
import math
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from raysum.errors import UserError
from raysum.evaluate.table import Evaluation
from raysum.runtime.remote import is_url, local, shown
from raysum.runtime.storage import check_writable, read_json, write_json, writing

AnyModel = TypeVar("AnyModel", bound=BaseModel)
TABLE = "table.json"


def is_finite(value: Any) -> bool:
    """Return whether a value is finite; diverging trainings report others."""
    return not isinstance(value, float) or math.isfinite(value)


def _finite(figures: Any) -> Any:
    return {key: value for key, value in figures.items() if is_finite(value)} if isinstance(figures, dict) else figures


Number = Annotated[int | float, Field(ge=-1e30, le=1e30)]  # charts can draw it
Figures = Annotated[dict[str, Number], BeforeValidator(_finite)]


def checked(kind: type[AnyModel], value: Any, file: Path) -> AnyModel:
    """Return ``value`` as ``kind``. Raises UserError with the ``file`` and the wrong part."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "its beginning"
        raise UserError(
            f"{file} is damaged at {key}: {first['msg']}; restore it from a copy, or make it again"
        ) from None


class ScoreTable(BaseModel):
    """The table.json of an evaluation; earlier versions wrote no ``data``."""

    systems: dict[str, Figures]
    differences: dict[str, Figures] = {}
    protocol: str = ""
    examples: int = Field(ge=0, le=10**15)
    how: dict[str, str] = {}
    data: dict[str, str] = {}

    @property
    def counting(self) -> str:
        """How ROUGE counts: the protocol without the number of examples."""
        return self.protocol.partition(" | n ")[0]


class SavedEvaluation:
    """An evaluation in a folder. Reading raises UserError if a file is damaged."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def table(self) -> ScoreTable:
        return checked(ScoreTable, read_json(self.folder / TABLE), self.folder / TABLE)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The ``id``, ``system`` and figures of each summary."""
        file = self.folder / "scores.parquet"
        try:
            scores = pd.read_parquet(file)
            return scores.astype({name: float for name in scores.columns.drop(["id", "system"])})
        except Exception as error:  # damaged files raise any exception
            raise UserError(f"{file} cannot be read ({error}); repeat the `raysum evaluate` command") from None


def check_place(out: str | Path) -> None:
    """Raises UserError if :func:`save_evaluation` cannot write ``out``: before summaries are decoded."""
    check_writable(_folder(out))


def _folder(out: str | Path) -> Path:
    return local(out) if is_url(out) else Path(out)


def save_evaluation(out: str | Path, result: Evaluation, outputs: Iterable[dict[str, Any]]) -> Evaluation:
    """Save ``result`` and return it. If the disk is full, none of the three files changes."""
    folder = _folder(out)
    unfinished = folder / ".unfinished"
    try:
        with writing(folder):
            unfinished.mkdir(parents=True, exist_ok=True)
            with (unfinished / "outputs.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in outputs)
            result.scores.to_parquet(unfinished / "scores.parquet", index=False)
            write_json(unfinished / TABLE, result.to_dict())
            for path in unfinished.iterdir():
                path.replace(folder / path.name)
    finally:
        with suppress(OSError):
            shutil.rmtree(unfinished)
            folder.rmdir()  # if it is empty
    return replace(result, place=shown(folder))
