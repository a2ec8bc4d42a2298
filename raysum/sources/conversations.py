"""Conversations: mailboxes, chats and issue threads, as documents with the speaker and the time as positions."""

import email.utils
import html
import mailbox
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from email.header import decode_header, make_header
from email.message import Message
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.file_positions import ORIGIN, Origin
from raysum.sources.documents.read import parse_document
from raysum.sources.folders import Contents
from raysum.sources.record import LONGEST, TOO_LONG, Record, parse_json
from raysum.sources.staging import local_content, natural_key, opened_text

_ID = re.compile(r"<[^<>\s]+>")
_REPLY = re.compile(r"(?i)^\s*((re|aw|fwd?|wg|sv|antw|tr|rv)(\[\d+\])?:\s*)+")
_SLACK_LINK = re.compile(r"<(?:@(\w+)|#\w+\|([^<>]*)|!(\w+)[^<>]*|[^<>|]*\|([^<>]*)|([^<>|]*))>")
_Turn = tuple[str, str, str]  # the position (speaker and time), the speaker and the text


def transcript(source: str, turns: Iterable[_Turn]) -> dict[str, Any]:
    """Return the document of ``turns``, one a line, each with its speaker."""
    lines, places, length = list[str](), list[tuple[int, str]](), 0
    for place, speaker, text in turns:
        line = " ".join(f"{speaker}: {text}".split())
        places.append((length, place))
        lines.append(line)
        length += len(line) + 1
    return {"source": source, "text": "\n".join(lines), ORIGIN: Origin(places, is_extracted=True)}


def read_mailbox(path: Path) -> Iterator[Record]:
    """Yield the threads of an mbox file: each message is a document, without quoted messages, called by its sender.

    A message belongs to the thread of the messages that it refers to, or to that of its subject.
    """
    with local_content(path) as local:
        box = mailbox.mbox(local, create=False)
        threads, of_message = defaultdict[str, list[tuple[Any, Message]]](list), dict[str, str]()
        for key in box.iterkeys():
            message = email.message_from_bytes(box.get_bytes(key).partition(b"\n\n")[0])
            own, *_ = [*_ID.findall(str(message["message-id"] or "")), f"message {key}"]
            subject = _REPLY.sub("", _header(message, "subject"))
            named = _ID.findall(f"{message['references'] or ''} {message['in-reply-to'] or ''}")
            known = (of_message[id] for id in named if id in of_message)
            thread = next(known, of_message.get(subject) if _REPLY.match(_header(message, "subject")) else None) or own
            of_message |= dict.fromkeys((own, *named, subject), thread)
            threads[thread].append((key, message))
        for thread, messages in threads.items():
            yield _thread(box, path, thread, messages)


def _thread(box: Any, path: Path, id: str, messages: list[tuple[Any, Message]]) -> Record:
    where, documents = f"{path}:{messages[0][0] + 1}", list[dict[str, Any]]()
    title = _REPLY.sub("", _header(messages[0][1], "subject"))
    try:
        for key, message in messages:
            sender = email.utils.parseaddr(_header(message, "from"))
            place = ", ".join(filter(None, (sender[0] or sender[1], _time(message))))
            text = parse_document(box.get_bytes(key), "message.eml", f"{path}, message {key + 1}").text
            if text.strip():
                origin = Origin([(0, place)], is_extracted=True)
                documents.append({"source": place, "text": text, ORIGIN: origin})
    except UserError as error:
        return Record(where, id, "a document is unreadable", str(error))
    return Record(where, {"id": id.strip("<>"), "title": title, "documents": documents})


def _time(message: Message) -> str:
    try:
        return email.utils.parsedate_to_datetime(_header(message, "date")).strftime("%Y-%m-%d %H:%M")
    except (ValueError, TypeError):
        return ""


def _header(message: Message, name: str) -> str:
    try:
        return " ".join(str(make_header(decode_header(str(message[name] or "")))).split())
    except (ValueError, LookupError):  # a wrong or unknown encoding
        return " ".join(str(message[name]).split())


def is_slack_export(folder: Path) -> bool:
    """Return whether ``folder`` is an unpacked export of a Slack workspace."""
    return all((folder / name).is_file() for name in ("channels.json", "users.json"))


def read_slack(folder: Path) -> Iterator[Record]:
    """Yield the channels of a Slack export; each day is a document with a line for each message."""
    people = {user["id"]: _name(user) for user in _json_objects(folder / "users.json") if "id" in user}
    for channel in Contents.of(folder).folders:
        days = [file for file in Contents.of(channel, folder).files if file.suffix == ".json"]
        if sum(day.stat().st_size for day in days) > LONGEST:
            yield Record(str(channel), channel.name, TOO_LONG)
        elif documents := [document for day in days if (document := _day(day, people))["text"]]:
            yield Record(str(channel), {"id": channel.name, "title": channel.name, "documents": documents})


def _json_objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects in the list of a file."""
    with opened_text(path) as file:
        try:
            value = parse_json(file.read(LONGEST).decode("utf-8-sig", "replace"))
        except ValueError as error:
            raise UserError(f"{path} is not JSON ({error}); export or fetch it again") from None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _name(user: Mapping[str, Any]) -> str:
    profile = user.get("profile") or user.get("user_profile") or {}
    names = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
    return str(next(filter(None, names), ""))


def _day(path: Path, people: Mapping[Any, str]) -> dict[str, Any]:
    def readable(link: re.Match[str]) -> str:
        return f"@{people.get(link[1], link[1])}" if link[1] else next(filter(None, link.groups()[1:]), "")

    turns = list[_Turn]()
    for message in _json_objects(path):
        if message.get("text") and not str(message.get("subtype")).startswith("channel_"):
            speaker = people.get(message.get("user", "")) or _name(message) or str(message.get("username") or "someone")
            seconds = float(message.get("ts") or 0)
            time = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
            text = html.unescape(_SLACK_LINK.sub(readable, str(message["text"])))
            turns.append((f"{speaker}, {time}", speaker, text))
    return transcript(path.stem, turns)


def discord(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a channel of Discord, as DiscordChatExporter writes it; each day is a document."""
    days = defaultdict[str, list[_Turn]](list)
    for message in raw["messages"]:
        speaker, time = message["author"].get("nickname") or message["author"]["name"], message["timestamp"]
        if message["content"]:
            days[time[:10]].append((f"{speaker}, {time[:16].replace('T', ' ')}", speaker, message["content"]))
    documents = [transcript(day, days[day]) for day in sorted(days, key=natural_key)]
    name = raw["channel"]["name"]
    return {"id": str(raw["channel"].get("id") or name), "title": name, "documents": documents}


def issue(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a thread of GitHub's issues or pull requests, as ``gh issue list --json`` writes it."""
    comments = raw["comments"] if isinstance(raw["comments"], list) else []
    documents = list[dict[str, Any]]()
    for part in (raw, *comments):
        author = part.get("author") or part.get("user") or {}
        time = part.get("createdAt") or part.get("created_at") or ""
        place = ", ".join(filter(None, (author.get("login"), time[:10]))) or f"comment {len(documents)}"
        documents += [{"source": place, "text": part["body"], ORIGIN: Origin([(0, place)])}] if part["body"] else []
    return {"id": str(raw.get("url") or raw.get("number") or ""), "title": raw["title"], "documents": documents}
