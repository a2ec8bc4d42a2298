"""Run folders of older versions (cf60146 and 19c3897): what they lack, and where it was."""

from pathlib import Path
from typing import Any

from raysum.runtime.storage import read_lines

# Before gradient_clipping was always set, DeepSpeed clipped at its default.
CONFIG: dict[str, Any] = {"deepspeed": {"gradient_clipping": 1.0}}
# In the state of a checkpoint, from which a resumed training continues.
STATE: dict[str, Any] = {"mixed": [], "new": [], "padding": 0, "waited": 0, "stepped": 0, "since_line": {}}


def read_validations(metrics: Path) -> dict[int, dict[str, Any]]:
    """Return the figures of validations by step from metrics.jsonl. The last line of a step counts."""
    validations: dict[int, dict[str, Any]] = {}
    for line in read_lines(metrics, b'"valid_', 0):
        if figures := {name: value for name, value in line.items() if name.startswith("valid_")}:
            validations.setdefault(line["step"], {}).update(figures)
    return validations
