"""The one exception for mistakes of the user's."""

import re

_LONGEST = 400  # characters of a word in a message; a path may have many


class UserError(ValueError):
    """A mistake in a config, a file, a dataset, a run folder or a port.

    The message names the thing and the fix; of a word longer than a path the beginning. The command line prints it
    alone, without a traceback, and exits with 2.
    """

    def __init__(self, message: str):
        super().__init__(re.sub(rf"(\S{{{_LONGEST}}})\S+", r"\1...", message))
