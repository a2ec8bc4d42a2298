"""`python -m raysum` is the command line."""

from raysum.cli.app import main

main()
