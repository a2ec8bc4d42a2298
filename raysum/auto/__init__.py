"""`raysum train auto`: a training that fits a dataset, a machine and a time, and whether it was worth it."""
