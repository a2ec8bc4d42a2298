"""What a search tries one key with: listed values, strings of layer letters, or a range."""

import math
import random
from itertools import product
from typing import Any

from pydantic import Field, model_validator

from raysum.config.sections import Section


class Mixes(Section):
    """All strings of ``letters`` with these numbers of layers.

    For k letters and the numbers n1, n2 ... that is k^n1 + k^n2 + ... strings: LG with 2 and 3 layers gives 4 + 8 = 12.
    """

    letters: str = Field(min_length=1, description="one letter a kind of layer")
    layers: list[int] = Field(min_length=1, description="numbers of layers")

    @model_validator(mode="after")
    def _check(self) -> "Mixes":
        if len(set(self.letters)) < len(self.letters):
            raise ValueError(f"letters {self.letters!r} names one twice")
        if min(self.layers) < 1 or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"layers {self.layers} must be different numbers of at least 1")
        return self

    @property
    def strings(self) -> list[str]:
        return ["".join(letters) for number in self.layers for letters in product(self.letters, repeat=number)]


class Values(Section):
    """What one key is tried with: exactly one of the five."""

    grid: list[Any] | None = Field(None, min_length=1, description="each value once, with each of the other keys")
    mixes: Mixes | None = Field(None, description="strings of layer letters: each once in a grid, else drawn")
    choice: list[Any] | None = Field(None, min_length=1, description="one of these, drawn for each trial")
    uniform: tuple[float, float] | None = Field(None, description="a number between the two")
    loguniform: tuple[float, float] | None = Field(None, description="the same, even on a logarithmic scale")

    @model_validator(mode="after")
    def _check(self) -> "Values":
        given = [name for name in Values.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(Values.model_fields)}; it has {given or 'none'}")
        for name in ("uniform", "loguniform"):
            bounds = getattr(self, name)
            if bounds and not (0 if name == "loguniform" else float("-inf")) < bounds[0] < bounds[1]:
                raise ValueError(f"{name} needs a lower and a greater bound{', above 0' * (name == 'loguniform')}")
        return self

    @property
    def listed(self) -> list[Any]:
        """All values, where they can be counted; none of a range."""
        return list(self.mixes.strings if self.mixes else self.grid or self.choice or ())

    @property
    def bounds(self) -> tuple[float, float] | None:
        return self.uniform or self.loguniform

    @property
    def ends(self) -> list[Any]:
        """Values that show whether all are valid: a range's bounds and a fraction, mixes of one letter, else all."""
        if self.mixes:
            return [letter * number for number in self.mixes.layers for letter in self.mixes.letters]
        if self.bounds:
            low, high = self.bounds
            return [low, low + (high - low) / math.pi, high]
        return self.listed

    def draw(self, rng: random.Random) -> Any:
        if self.uniform:
            return rng.uniform(*self.uniform)
        if self.loguniform:
            return math.exp(rng.uniform(*map(math.log, self.loguniform)))
        return rng.choice(self.listed)
