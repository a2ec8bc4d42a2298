"""Searches: spaces, trials, results. The room is its verb, too: ``raysum.tune(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.tune.search:tune")
