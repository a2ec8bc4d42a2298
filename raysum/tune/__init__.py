"""Searches: spaces, trials, results.

The room is its verb, too: ``raysum.tune(space, *overrides, **values)`` is ``raysum.tune.search.tune``.
"""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.tune.search:tune")
