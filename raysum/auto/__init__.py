"""`raysum train auto`: choose settings for a dataset, a machine and a time limit, train, and compare the result."""
