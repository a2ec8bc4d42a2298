"""Searches: spaces, trials, results. The module is also the function ``raysum.tune(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.tune.search:tune")
