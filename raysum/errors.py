"""The one exception for mistakes of the user's."""


class UserError(ValueError):
    """A mistake in a config, a file, a dataset, a run folder or a port.

    The message names the thing and the fix. The command line prints it alone, without a traceback, and exits with 2.
    """
