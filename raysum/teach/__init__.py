"""Summaries by a language model for clusters that have none. The room is its verb, too: ``raysum.teach(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.teach.job:teach")
