"""`python -m raysum` is the command line."""

from raysum.cli import main

main()
