"""Training: the driver, the worker's loop, checkpoints, labels. The room is its verb, too: ``raysum.train(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.train.fit:train")
