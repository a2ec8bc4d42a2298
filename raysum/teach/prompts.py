"""From clusters to prompts: which clusters need a summary, which of their paragraphs are sent, and the prompt texts."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any

from raysum.config.loading import read_text
from raysum.errors import UserError
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.paragraphs import Paragraph, paragraphs_of
from raysum.prepare.ranking import best_first, rank_scores
from raysum.sources.find import RawSource
from raysum.sources.record import Record, Rejected
from raysum.teach.config import TeachConfig
from raysum.text.cleaning import pieces
from raysum.text.tfidf import words

_SUMMARY, _CITATIONS = Path(__file__).with_name("summary.txt"), Path(__file__).with_name("citations.txt")
_SLOTS = ("documents", "title", "words")
_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"(?<!\{)\{([A-Za-z_]+)\}")  # looks like a slot
_DOUBLED = re.compile(r"\{(\{[A-Za-z_]+\})\}")
_REPLACED = ("summary", "summaries", "target_ids", "teacher", "citations")  # fields that the output writes itself


@dataclass(frozen=True)
class Prompts:
    """The templates of the two prompts. ``sha256`` identifies that of the summary."""

    summary: str
    citations: str

    @classmethod
    def of(cls, config: TeachConfig) -> "Prompts":
        """Raises UserError if the file cannot be read, lacks {documents}, or has an unknown slot."""
        text = read_text(Path(config.prompt or _SUMMARY).expanduser())
        if "{documents}" not in text:
            raise UserError(f"{config.prompt} has no {{documents}} in it; write it where the documents should stand")
        if unknown := next((word for word in _WORD.findall(text) if word not in _SLOTS), None):
            (near,) = get_close_matches(unknown.lower(), _SLOTS, 1, cutoff=0)
            raise UserError(
                f"{config.prompt} has {{{unknown}}} in it, which nothing fills; did you mean {{{near}}}? "
                f"To send it as it is, write {{{{{unknown}}}}}"
            )
        return cls(_filled(_DOUBLED.sub(r"\1", text), words=str(config.words)), read_text(_CITATIONS))

    @property
    def sha256(self) -> str:
        return _hashed(self.summary)


@dataclass(frozen=True)
class Task:
    """The settings of a job for all its clusters."""

    config: TeachConfig
    prompts: Prompts
    api_key: str = field(repr=False)


@dataclass(frozen=True)
class Question:
    """A cluster without summary, with the paragraphs to send. The keys are those of its two answers."""

    key: str
    cite_key: str
    title: str
    names: list[str]  # of the documents
    paragraphs: list[Paragraph]

    def summary_prompt(self, prompts: Prompts) -> str:
        documents = [
            f"[{number + 1}] {self.names[number]}\n" + "\n\n".join(paragraph.text for paragraph in paragraphs)
            for number, paragraphs in groupby(self.paragraphs, key=lambda paragraph: paragraph.document)
        ]
        return _filled(prompts.summary, title=self.title, documents="\n\n".join(documents))

    def citations_prompt(self, prompts: Prompts, sentences: Sequence[str]) -> str:
        texts = [paragraph.text for paragraph in self.paragraphs]
        return _filled(
            prompts.citations,
            title=self.title,
            paragraphs="\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1)),
            sentences="\n".join(f"[{number}] {text}" for number, text in enumerate(sentences, 1)),
        )


@dataclass(frozen=True)
class Item:
    """A raw cluster: it needs a summary if it has a ``key``; otherwise the output copies it, if it has no problem."""

    record: Record
    raw: dict[str, Any]  # without the fields that the output writes
    cluster: Cluster | None = None
    key: str = ""
    cite_key: str = ""
    problem: Rejected | None = None


def items(source: RawSource, task: Task) -> Iterator[Item]:
    """Yield the clusters of a source. Raises UserError if it is damaged."""
    for record in source.records():
        try:
            raw = _raw(record, source.split)
            if not task.config.replace and _has_summary(raw):
                yield Item(record, raw)
                continue
            raw = {name: value for name, value in raw.items() if name not in _REPLACED}
            cluster = read_cluster(raw)
            if raw.get("title") == Path(record.where).name.replace("_", " "):  # the folder's name: not a real title
                cluster = replace(cluster, title="")
            if not any(text.strip() for _, text in cluster.documents):
                raise Rejected("no text in the documents")
        except Rejected as problem:
            yield Item(record, {}, problem=problem)
        else:
            key = _key(cluster, task)
            yield Item(record, raw, cluster, key, _hashed(key, task.prompts.citations))


def question_of(item: Item, config: TeachConfig) -> Question:
    """Return the question of an item with a key."""
    assert item.cluster is not None
    names = [name for name, _ in item.cluster.documents]
    return Question(item.key, item.cite_key, item.cluster.title, names, _sent(item.cluster, config))


def is_truncated(cluster: Cluster, config: TeachConfig) -> bool:
    """Return whether only a part of the cluster is sent."""
    if sum(len(text) for _, text in cluster.documents) <= config.max_characters:
        return False
    return sum(len(p.text) for p in paragraphs_of(cluster, config.paragraph_separator)) > config.max_characters


def _raw(record: Record, split: str | None) -> dict[str, Any]:
    """Return the raw cluster with its id and the split of its file. Raises Rejected if it cannot be written."""
    raw = record.cluster()
    if split and raw.get("split") in (None, ""):
        raw["split"] = split
    try:
        json.dumps(raw, ensure_ascii=False, default=str).encode()
    except (UnicodeEncodeError, ValueError, RecursionError) as error:
        raise Rejected("cannot be written as JSON", str(error)[:200]) from None
    return raw


def _has_summary(raw: dict[str, Any]) -> bool:
    summaries = raw.get("summaries")
    texts = [raw.get("summary"), *(summaries if isinstance(summaries, list) else [])]
    return any(isinstance(text, str) and text.strip() for text in texts) or bool(raw.get("target_ids"))


def _key(cluster: Cluster, task: Task) -> str:
    """Return the hash of all that determines an answer: model, prompt, parameters (but the limit) and content."""
    config = task.config
    parameters = {name: value for name, value in config.parameters.items() if name != "max_tokens"}
    settings = [config.model, task.prompts.summary, parameters, config.max_characters, config.paragraph_separator]
    return _hashed(json.dumps([settings, cluster.cut_into_paragraphs, cluster.title, cluster.documents]))


def _sent(cluster: Cluster, config: TeachConfig) -> list[Paragraph]:
    """Return the paragraphs to send, in document order: all, or the best-ranked ones within ``max_characters``."""
    paragraphs = [*paragraphs_of(cluster, config.paragraph_separator)]
    if sum(len(paragraph.text) for paragraph in paragraphs) <= config.max_characters:
        return paragraphs
    order = best_first(rank_scores("tfidf", words(cluster.title), [paragraph.words for paragraph in paragraphs]))
    chosen, rest = list[int](), config.max_characters
    for number in map(int, order):
        if len(paragraphs[number].text) <= rest:
            chosen.append(number)
            rest -= len(paragraphs[number].text)
    if not chosen:  # each one is too long
        best = paragraphs[order[0]]
        return [best._replace(text=next(pieces(best.text, config.max_characters)))]
    return [paragraphs[number] for number in sorted(chosen)]


def _filled(template: str, **values: str) -> str:
    """Return the template with the named slots filled; other braces stay."""
    return _SLOT.sub(lambda slot: values.get(slot[1], slot[0]), template)


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
