"""Reports: one page of runs, searches and evaluations. The room is its verb, too: ``raysum.report(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.report.page:report")
