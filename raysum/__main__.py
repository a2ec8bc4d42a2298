"""The command line, also as `python -m raysum`. Its imports take half a second, which Ctrl-C may interrupt."""

import gc
import sys


def main() -> None:
    """Run the command line. Ctrl-C during its import prints one line and returns exit code 130.

    Python's collector looks more rarely than by default at the 250,000 objects that imports make: it took 0.8 s of
    `raysum evaluate`, and takes 0.3 s (the quickstart's run, 300 examples).
    """
    gc.set_threshold(20_000, 20, 20)
    try:
        from raysum.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("raysum: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
