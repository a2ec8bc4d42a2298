"""The folder of a reproduction: its settings, datasets, runs, evaluations, tables."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.research.reproduce.config import ReproduceConfig
from raysum.research.reproduce.sizes import Scale
from raysum.research.reproduce.systems import System
from raysum.runs.folder import Run
from raysum.runtime.extras import has
from raysum.runtime.storage import check_vacant, read_json, write_json, writing
from raysum.sources.find import find_sources

BASE = "ranked"  # all other datasets have its vocabulary
_SETTINGS = "settings.json"
_PATHS = ("data", "open", "bert")
_FIXED = (*_PATHS, "minutes", "size")  # settings that hold of all that is in the folder


@dataclass(frozen=True)
class Workspace:
    config: ReproduceConfig

    @property
    def out(self) -> Path:
        return Path(self.config.out).expanduser().absolute()

    def claim(self) -> None:
        """Write the settings, or compare them with those in the folder.

        Raises UserError if the folder has other files, or a reproduction with other settings.
        """
        size = sum(source.size for source in find_sources([self.config.data]))
        wanted = {name: getattr(self.config, name) for name in _FIXED}
        wanted |= {name: str(Path(path).expanduser().absolute()) for name in _PATHS if (path := wanted[name])}
        wanted |= {"bytes": size}
        if not (self.out / _SETTINGS).is_file():
            check_vacant(self.out)
            with writing(self.out):
                write_json(self.out / _SETTINGS, wanted)
            return
        known: dict[str, Any] = read_json(self.out / _SETTINGS)
        other = [name for name in wanted if known.get(name) != wanted[name]]
        if other:
            name = other[0]
            previous = "other data" if name == "bytes" else f"{name}={known.get(name)}, not {wanted[name]}"
            raise UserError(f"{self.out} was made with {previous}; use that again, or choose another out=")

    def data(self, name: str) -> Path:
        return self.out / "data" / name

    def run(self, name: str) -> Run:
        return Run(self.out / "runs" / name)

    def trained(self, name: str) -> Path:
        """The file that says of a finished run how it was trained."""
        return self.out / "runs" / f"{name}.json"

    def evaluation(self, name: str, protocol: str, split: str) -> Path:
        return self.out / "evaluations" / f"{protocol}-{split}-{self.config.limit}" / name

    def measure(self, name: str) -> Path:
        return self.out / "measures" / f"{name}-{self.config.limit}.json"

    def table(self, name: str, suffix: str) -> Path:
        return self.out / "tables" / f"{name}{suffix}"

    def study(self, name: str) -> Path:
        return self.out / "judges" / name

    @cached_property
    def scale(self) -> Scale:
        """Of the lengths, by the dataset ``BASE``."""
        return Scale() if self.config.size == "paper" else Scale.of(Dataset.open(self.data(BASE)))

    def lacks(self, system: System) -> str:
        """Return the setting that a system needs and that is missing, or an empty string."""
        if system.name != "bert":
            return ""
        if not has("transformers"):
            return 'pip install -c constraints.txt ".[bert]"'
        return "bert=FOLDER" if self.config.size == "paper" and self.config.bert is None else ""
