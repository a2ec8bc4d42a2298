"""What an import tells when it is done: the model, what of it is new, and how much it reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysum.runs.folder import RunResult
from raysum.runs.restore import listed
from raysum.systems import Spec, count_parameters, parameters
from raysum.tokenizers.special_tokens import marks_of


def marks_around(spec: Spec) -> int:
    """The tokens around each paragraph that ``source.paragraph_tokens`` counts, too."""
    return 0 if spec.joins_paragraphs else marks_of(spec).around


@dataclass(frozen=True)
class Imported(RunResult):
    """A run that was imported."""

    ignored: Mapping[str, Any] = field(default_factory=dict)  # published decoding settings that raysum does not apply

    def to_dict(self) -> dict[str, Any]:
        """Besides what every run tells: its layers, parameters, and those that no weights came for."""
        spec: Any = self.run.config.model
        told = {"encoder": spec.encoder, "decoder": spec.decoder, "parameters": count_parameters(spec)}
        return {**super().to_dict(), **told, "new": self.run.best().state.get("untrained", []),
                "ignored": {**self.ignored}}  # fmt: skip

    def render(self) -> str:
        told, spec, source = self.to_dict(), self.run.config.model, self.run.config.source
        around = marks_around(spec)
        read = f"{source.max_paragraphs} paragraphs of {source.paragraph_tokens} tokens"
        read += f" ({around} of them marks)" if around else ""
        read += f", {source.max_tokens:,} in all" if source.max_tokens else ""
        places = f"; it has places for {spec.places:,} tokens" if spec.places else ""
        places += " of a paragraph" if places and not spec.joins_paragraphs else ""
        kept = f"--max-paragraphs {source.max_paragraphs} --paragraph-tokens {source.paragraph_tokens - around}"
        lines = [f"run: {told['run']}, {told['encoder']}/{told['decoder']}, {told['parameters']:,} parameters"]
        if told["new"]:
            trained = [name for name in parameters(spec) if name not in told["new"]]
            lines.append(f"new, without published weights: {listed(told['new'], trained)}")
        lines.append(f"reads {read}{places}")
        if told["ignored"]:
            values = ", ".join(f"{name}={json.dumps(value)}" for name, value in told["ignored"].items())
            lines.append(f"not applied, so summaries may differ from transformers': {values} (generation settings)")
        lines.append(f"data for it: raysum prepare ... --vocab {self.run.vocabulary} {kept}")
        return "\n".join(lines)
