"""Comparing systems: scorers, tables. The room is its verb, too: ``raysum.evaluate(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.evaluate.evaluation:evaluate")
