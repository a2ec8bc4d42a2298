"""Hosting a run over HTTP, and a client. The room is its verb, too: ``raysum.serve(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.serve.app:serve")
