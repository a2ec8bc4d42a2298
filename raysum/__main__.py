"""The command line, also as `python -m raysum`. Its imports take half a second, which Ctrl-C may interrupt."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C during its import prints one line and returns exit code 130."""
    try:
        from raysum.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("raysum: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
