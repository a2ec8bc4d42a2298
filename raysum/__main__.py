"""The command line, also as `python -m raysum`: what it imports takes half a second, in which Ctrl-C is heard."""

import sys


def main() -> None:
    """``raysum.cli.app.main``; exit code 130 and one line for Ctrl-C while that loads."""
    try:
        from raysum.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("raysum: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
