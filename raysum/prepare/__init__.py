"""Raw clusters to datasets. The room is its verb, too: ``raysum.prepare(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.prepare.job:prepare")
