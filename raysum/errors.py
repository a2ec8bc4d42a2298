"""The one exception for mistakes of the user."""

import re

_LONGEST = 400  # characters of a word in a message; a path may have many
_HEAD, _TAIL = 1000, 300  # characters of a line that remain; the fix is at its end
_JOINED = re.compile(r"\b(s3a?|gs|gcs|hf|hdfs|abfss?|memory):/(?!/)")  # URLs as pathlib joins them
# USER@ or USER:PASSWORD@ after the protocol of a URL. A password may hold a slash, and a port is a number.
_USER = re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}:/{1,2})(?:[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))\S*@|[^/\s]*@)")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # all but line ends
_PASSWORD = re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}):/{1,2}[^/\s\[:@]*:(?!\d*(?:[/\s,;?#\])]|$))")


class UserError(ValueError):
    """A mistake in a config, a file, a dataset, a run folder or a port.

    The message names the subject and the fix; very long words and lines are truncated. The command line prints it
    without a traceback, and exits with code 2.
    """

    def __init__(self, message: str):
        message = spelled(_JOINED.sub(r"\1://", without_users(message)))
        message = re.sub(rf"(\S{{{_LONGEST}}})\S+", r"\1...", message)
        super().__init__(re.sub(rf"(.{{{_HEAD}}}).+(.{{{_TAIL}}})", r"\1 ... \2", message))


def spelled(text: str) -> str:
    """Return ``text`` with escaped control characters, which a terminal would obey."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def without_users(text: str) -> str:
    """Return ``text`` with stars in place of users and passwords in URLs."""
    return _USER.sub(r"\1***@", text)


def check_no_password(text: str) -> None:
    """Raises UserError if ``text`` holds a URL with a password, which others on this machine could read."""
    if found := _PASSWORD.search(text):
        raise UserError(f"{found[1]}:// URLs must not hold a password; give credentials in the environment")
