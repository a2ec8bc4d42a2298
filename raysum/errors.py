"""The one exception for mistakes of the user's."""

import re

_LONGEST = 400  # characters of a word in a message; a path may have many
_JOINED = re.compile(r"\b(s3a?|gs|gcs|hf|hdfs|abfss?|memory):/(?!/)")  # URLs as pathlib joins them
# What follows the protocol of a URL, with one slash, too, as pathlib joins them: USER@ or USER:PASSWORD@, where a
# password may hold a slash, and a port is a number.
_USER = re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}:/{1,2})(?:[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))\S*@|[^/\s]*@)")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # what a terminal obeys; line ends stay
_PASSWORD = re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}):/{1,2}[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))")


class UserError(ValueError):
    """A mistake in a config, a file, a dataset, a run folder or a port.

    The message names the thing and the fix; of a word longer than a path the beginning, and what a terminal would obey
    is spelled. The command line prints it alone, without a traceback, and exits with 2.
    """

    def __init__(self, message: str):
        message = spelled(_JOINED.sub(r"\1://", without_users(message)))
        super().__init__(re.sub(rf"(\S{{{_LONGEST}}})\S+", r"\1...", message))


def spelled(text: str) -> str:
    """``text`` for a terminal, with what that would obey as Python writes it."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def without_users(text: str) -> str:
    """``text`` with stars in place of the users, and their passwords, in URLs."""
    return _USER.sub(r"\1***@", text)


def check_no_password(text: str) -> None:
    """Raises UserError where ``text`` holds a URL with a password, which others on this machine could read."""
    if found := _PASSWORD.search(text):
        raise UserError(f"{found[1]}:// URLs must not hold a password; give credentials in the environment")
