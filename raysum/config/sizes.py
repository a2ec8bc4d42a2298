"""A config with the size of its model, compared with the size in a paper."""

from dataclasses import dataclass
from typing import Any

from raysum.config.loading import dump
from raysum.config.sections import Config
from raysum.systems import Spec, count_parameters

# Model sizes in the PHT and VHT papers (Table 5 and Table 4) by preset: 12 bytes a parameter (fp32 and Adam's two
# moments) with tied output and embedding, exactly for ft-3, transformer-decoder, pht and vht, within 1 % for others.
PAPERS_MB = {"ft-3": 165.0, "tdmca-3": 131.1, "txl": 130.4, "ht-3-3": 190.8, "pht": 182.4, "vht": 174.5}
PAPERS_MB |= {"transformer-decoder": 127.1}


def megabytes(spec: Spec, moments: bool = False) -> float:
    """Return the size of the parameters in fp32 in MB (10^6 bytes), with ``moments`` including Adam's two."""
    return count_parameters(spec) * (12 if moments else 4) / 1e6


@dataclass(frozen=True)
class SizedConfig:
    """The output of `raysum config show`."""

    preset: str
    config: Config

    def to_dict(self) -> dict[str, Any]:
        spec, paper = self.config.model, PAPERS_MB.get(self.preset)
        sizes = {"parameters": count_parameters(spec), "parameters_mb": megabytes(spec), "paper_mb": paper}
        return self.config.model_dump(mode="json") | sizes

    def render(self) -> str:
        """Return the config as YAML, with the sizes as comments."""
        spec, paper = self.config.model, PAPERS_MB.get(self.preset)
        number, plain, trained = count_parameters(spec), megabytes(spec), megabytes(spec, moments=True)
        lines = [f"# {number:,} parameters: {plain:.1f} MB in fp32, {trained:.1f} MB with Adam's moments"]
        if paper:
            lines.append(f"# the paper: {paper} MB (with moments and tied output), {paper / trained:.3f} of this size")
        return "\n".join([*lines, dump(self.config).rstrip()])
