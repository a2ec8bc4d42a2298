"""Training: driver, worker loop, checkpoints, labels. The module is also the function ``raysum.train(...)``."""

from raysum.verbs import make_verb

make_verb(__name__, "raysum.train.fit:train")
