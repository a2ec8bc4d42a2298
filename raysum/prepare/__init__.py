"""Raw clusters to datasets. The package is callable: ``raysum.prepare(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.prepare.job:prepare")
