"""E-mail, and web pages that are saved as such (MHTML)."""

import email
import email.policy
from email.message import EmailMessage

from raysum.sources.documents import html
from raysum.sources.documents.text import Text, decoded


def read(content: bytes, name: str) -> Text:
    """The body, without lines quoted of other messages; the subject is the title. Raises UserError."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    body = message.get_body(("plain", "html"))
    subject = str(message.get("subject") or "")
    if body is None:
        return Text("", subject)
    payload = body.get_payload(decode=True)
    raw = payload if isinstance(payload, bytes) else b""
    if body.get_content_subtype() == "html":
        page = html.read(raw, name)
        return Text(page.text, subject or page.title, page.places)
    try:
        text = raw.decode(body.get_content_charset() or "utf-8")
    except (ValueError, LookupError):  # of another encoding than it says, or of none that there is
        text = decoded(raw, name)
    lines = (line for line in text.replace("\r\n", "\n").split("\n") if not line.startswith(">"))
    return Text("\n".join(lines).strip(), subject)
