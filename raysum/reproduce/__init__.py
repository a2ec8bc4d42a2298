"""The papers' tables on any data, each row by a system that is trained here. The room is its verb, too."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.reproduce.job:reproduce")
