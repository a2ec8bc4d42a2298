"""A system from outside raysum: its specification, its model, and an entry point that names them."""
