"""E-mail without quoted messages and signatures, and saved web pages (MHTML)."""

import email
import email.policy
import re
from dataclasses import replace
from email.message import EmailMessage, MIMEPart

from raysum.sources.documents.file_positions import mail_pieces
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks
from raysum.sources.documents.web_page import decode_page, html_blocks, read_html

_QUOTES = "//blockquote | //*[contains(@class, '_quote') or contains(@class, 'cite-prefix') or @id='divRplyFwdMsg']"
_WROTE = "wrote|writes|schrieb|écrit|escribió|scritto|schreef|escreveu|skrev|napisał|пишет|написал"
_ATTRIBUTION = re.compile(
    rf"(?im)^(?=\S)(?!>)[^\n]{{0,200}}(?:\n[^\n]{{0,100}})?\b(?:{_WROTE})\b[^\n]{{0,60}}:[ \t]*$(?=\s*>)"
)
_ATTRIBUTION_ONLY = re.compile(rf"(?im)^On [^\n]{{10,200}}(?:\n[^\n]{{0,100}})?\b(?:{_WROTE}):[ \t]*\Z")
_ORIGINAL = re.compile(
    r"(?im)^[ \t]*-{2,}[ \t]*(original message|ursprüngliche nachricht|message d'origine|mensaje original|messaggio "
    r"originale|oorspronkelijk bericht)[ \t]*-{2,}"
    r"|^[ \t]*(_{10,}\s+)?(from|von|de|da|van): [^\n]+\s+(sent|gesendet|envoyé|enviado|inviato|verzonden|date|datum): "
)
_SIGNATURE = re.compile(r"(?m)^-- ?$")


def read_mail(content: bytes, name: str) -> DocumentText:
    """Return the body of an e-mail or a saved web page (MHTML), without quoted messages and its signature.

    The title is the subject. Raises UserError if the body is not text.
    """
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    document, body = message_text(message, name), message.get_body(("plain", "html"))
    if body is None or str(body.get("content-transfer-encoding", "")).lower() == "base64":
        return replace(document, pieces=())
    try:
        raw = content.decode()
    except UnicodeDecodeError:
        raw = content.decode("latin-1")
    return replace(document, pieces=mail_pieces(document.text, raw, body.get_content_subtype() == "html"))


def message_text(message: EmailMessage, name: str) -> DocumentText:
    """Return the body of a message."""
    body = message.get_body(("plain", "html"))
    subject = str(message.get("subject") or "")
    if body is None:
        return DocumentText("", subject)
    payload = body.get_payload(decode=True)
    raw = payload if isinstance(payload, bytes) else b""
    if body.get_content_subtype() != "html":
        return DocumentText(own_lines(_decode(raw, body, name)), subject)
    if "content-location" in body or "snapshot-content-location" in message:
        page = read_html(raw, name)
        return replace(page, title=subject or page.title)
    text = join_blocks(html_blocks(decode_page(raw, name), _QUOTES)).text
    return DocumentText(own_lines(text), subject)


def _decode(raw: bytes, body: MIMEPart, name: str) -> str:
    try:
        return raw.decode(body.get_content_charset() or "utf-8").replace("\r\n", "\n")
    except (ValueError, LookupError):  # the header names a wrong or unknown encoding
        return decode_text(raw, name).replace("\r\n", "\n")


def own_lines(text: str) -> str:
    """Return the lines of the sender: without quoted lines and who wrote them, an original message below, and the
    signature."""
    text = _ATTRIBUTION.sub("", text)
    text = "\n".join(line for line in text.split("\n") if not line.startswith(">"))
    for ending in (_ORIGINAL, _SIGNATURE):
        found = ending.search(text)
        text = text[: found.start()] if found and text[: found.start()].strip() else text
    return _ATTRIBUTION_ONLY.sub("", text.strip()).strip()
