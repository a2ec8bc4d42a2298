"""The one exception for mistakes of the user's."""

import re

_LONGEST = 400  # characters of a word in a message; a path may have many
_JOINED = re.compile(r"\b(s3a?|gs|gcs|hf|hdfs|abfss?|memory):/(?!/)")  # URLs as pathlib joins them
# What follows the protocol of a URL, with one slash, too, as pathlib joins them: USER@ or USER:PASSWORD@, where a
# password may hold a slash, and a port is a number.
_USER = re.compile(r"(?i)([a-z][a-z0-9+.-]+:/{1,2})(?:[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))\S*@|[^/\s]*@)")
_PASSWORD = re.compile(r"(?i)([a-z][a-z0-9+.-]+):/{1,2}[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))")


class UserError(ValueError):
    """A mistake in a config, a file, a dataset, a run folder or a port.

    The message names the thing and the fix; of a word longer than a path the beginning. The command line prints it
    alone, without a traceback, and exits with 2.
    """

    def __init__(self, message: str):
        message = _JOINED.sub(r"\1://", without_users(message))
        super().__init__(re.sub(rf"(\S{{{_LONGEST}}})\S+", r"\1...", message))


def without_users(text: str) -> str:
    """``text`` with stars in place of the users, and their passwords, in URLs."""
    return _USER.sub(r"\1***@", text)


def check_no_password(text: str) -> None:
    """Raises UserError where ``text`` holds a URL with a password, which others on this machine could read."""
    if found := _PASSWORD.search(text):
        raise UserError(f"{found[1]}:// URLs must not hold a password; give credentials in the environment")
