"""Generated parts of the documentation: option tables of the pages and JSON schemas of configs and spaces.

``python -m raysum.cli.reference`` in the clone rewrites them; a test compares them with the code.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from raysum.bench.registry import BENCHES
from raysum.config.base import Section
from raysum.config.decoding import DecodeConfig, ExtractConfig, SourceConfig
from raysum.config.sections import Config, OptimConfig, TrainConfig
from raysum.evaluate.config import EvaluateConfig
from raysum.models.family.spec import Adapters
from raysum.prepare.config import PrepareConfig
from raysum.research.reproduce.tables import ReproduceConfig
from raysum.serve.config import ServeConfig
from raysum.systems import Checked
from raysum.teach.config import TeachConfig
from raysum.tune.schema import SpaceConfig

_SECTIONS: dict[str, type[Checked]] = {
    section.__name__.removesuffix("Config").lower(): section
    for section in (
        *(Adapters, DecodeConfig, EvaluateConfig, ExtractConfig, OptimConfig, PrepareConfig),
        *(ReproduceConfig, ServeConfig, SourceConfig, SpaceConfig, TeachConfig, TrainConfig),
    )
}
_SECTIONS |= {f"{name}bench": kind for name, kind in BENCHES.items()}
SCHEMAS: dict[str, type[Section]] = {
    "raysum/presets/config.schema.json": Config,
    "tune_spaces/space.schema.json": SpaceConfig,
}
_TABLE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(page: str) -> str:
    """Return the text of a page with a current option table between each pair of markers."""
    return _TABLE.sub(lambda match: f"{match[1]}{_table(_SECTIONS[match[2]])}{match[3]}", page)


def schema(section: type[Section]) -> str:
    """Return the JSON schema of a file that holds a section; presets can extend another file."""
    content = section.model_json_schema()
    content["properties"]["extends"] = {"type": "string", "description": "preset or file with the base values"}
    return json.dumps(content, indent=1) + "\n"


def _table(section: type[Checked]) -> str:
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        if not field.exclude:
            rows.append(f"| `{name}` | {_default(field)} | {_cell(field.description or '')} |")
    return "\n".join([*rows, ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    return "" if value is None or isinstance(value, Checked) else f"`{_cell(json.dumps(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(root: Path) -> None:
    """Rewrite the generated parts of the clone at ``root``."""
    for page in (root / "docs").glob("*.md"):
        page.write_text(fill_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, section in SCHEMAS.items():
        (root / name).write_text(schema(section), encoding="utf-8")


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
