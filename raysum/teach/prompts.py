"""What the teacher is told of a cluster: as much of it as is read, and the prompts around it."""

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

_OWN = Path(__file__).parent
_SUMMARY, _CITATIONS = _OWN / "summary.txt", _OWN / "citations.txt"
_SLOTS = ("documents", "title", "words")
_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"(?<!\{)\{([A-Za-z_]+)\}")  # what looks like a slot
_DOUBLED = re.compile(r"\{(\{[A-Za-z_]+\})\}")
_TARGETS = ("summary", "summaries", "target_ids")
_TAUGHT = ("teacher", "citations")  # what is written beside a summary


@dataclass(frozen=True)
class Prompts:
    """Both prompts, as they are filled for each cluster; ``sha256`` tells that of the summary from others."""

    summary: str
    citations: str

    @classmethod
    def of(cls, config: TeachConfig) -> "Prompts":
        """Raises UserError where the file of a prompt does not read, has no place for the documents, or one for what
        there is not."""
        text = read_text(Path(config.prompt or _SUMMARY).expanduser())
        if "{documents}" not in text:
            raise UserError(f"{config.prompt} has no {{documents}} in it, where the cluster's documents are to stand")
        if odd := next((word for word in _WORD.findall(text) if word not in _SLOTS), None):
            (near,) = get_close_matches(odd.lower(), _SLOTS, 1, cutoff=0)
            raise UserError(
                f"{config.prompt} has {{{odd}}} in it, which nothing fills; did you mean {{{near}}}? "
                f"To send it as it is, write {{{{{odd}}}}}"
            )
        return cls(_filled(_DOUBLED.sub(r"\1", text), words=str(config.words)), read_text(_CITATIONS))

    @property
    def sha256(self) -> str:
        return _hashed(self.summary)


@dataclass(frozen=True)
class Task:
    """What all clusters of a job have in common."""

    config: TeachConfig
    prompts: Prompts
    api_key: str = field(repr=False)
    answers: Path  # where they are kept


@dataclass(frozen=True)
class Brief:
    """A cluster without summary, on its way to the teacher: the paragraphs that are read of it."""

    key: str  # of the summary among the answers
    cite_key: str
    where: str
    title: str
    names: list[str]  # of the documents
    paragraphs: list[Paragraph]

    def summary_prompt(self, prompts: Prompts) -> str:
        documents = groupby(self.paragraphs, key=lambda paragraph: paragraph.document)
        told = (f"[{n + 1}] {self.names[n]}\n" + "\n\n".join(one.text for one in some) for n, some in documents)
        return _filled(prompts.summary, title=self.title, documents="\n\n".join(told))

    def citations_prompt(self, prompts: Prompts, sentences: Sequence[str]) -> str:
        return _filled(
            prompts.citations,
            title=self.title,
            paragraphs="\n\n".join(f"[{number}] {one.text}" for number, one in enumerate(self.paragraphs, 1)),
            sentences="\n".join(f"[{number}] {one}" for number, one in enumerate(sentences, 1)),
        )


@dataclass(frozen=True)
class Item:
    """A raw cluster of the sources: to be taught, if it has a ``key``, or to be passed on as it is."""

    record: Record
    raw: dict[str, Any]  # as it is written, without what the teacher adds
    cluster: Cluster | None = None
    key: str = ""
    cite_key: str = ""
    problem: Rejected | None = None  # why nothing can be done with it


def items(source: RawSource, task: Task) -> Iterator[Item]:
    """The clusters of a source. Raises UserError where it is damaged."""
    for record in source.records():
        try:
            raw = _passed_on(record, source.split)
            if not task.config.replace and _has_summary(raw):
                yield Item(record, raw)
                continue
            raw = {name: value for name, value in raw.items() if name not in (*_TARGETS, *_TAUGHT)}
            cluster = read_cluster(raw)
            if raw.get("title") == Path(record.where).name.replace("_", " "):  # the folder's name, for want of a title
                cluster = replace(cluster, title="")
            if not any(text.strip() for _, text in cluster.documents):
                raise Rejected("no text in the documents")
        except Rejected as problem:
            yield Item(record, {}, problem=problem)
        else:
            key = _key(cluster, task)
            yield Item(record, raw, cluster, key, _hashed(key, task.prompts.citations))


def brief_of(item: Item, config: TeachConfig) -> Brief:
    """Of an item that is to be taught."""
    assert item.cluster is not None
    names = [name for name, _ in item.cluster.documents]
    kept = _read(item.cluster, config)
    return Brief(item.key, item.cite_key, item.record.where, item.cluster.title, names, kept)


def is_cut(cluster: Cluster, config: TeachConfig) -> bool:
    """Whether not all of a cluster is read."""
    if sum(len(text) for _, text in cluster.documents) <= config.context:
        return False
    return sum(len(p.text) for p in paragraphs_of(cluster, config.parted_by)) > config.context


def _passed_on(record: Record, split: str | None) -> dict[str, Any]:
    """The raw cluster with its id, and the split that only the name of its file tells. Raises Rejected."""
    raw = record.cluster()
    if split and raw.get("split") in (None, ""):
        raw["split"] = split
    try:
        json.dumps(raw, ensure_ascii=False, default=str).encode()
    except (UnicodeEncodeError, ValueError, RecursionError) as error:
        raise Rejected("cannot be written as JSON", str(error)[:200]) from None
    return raw


def _has_summary(raw: dict[str, Any]) -> bool:
    given = [raw.get("summary"), *(raw["summaries"] if isinstance(raw.get("summaries"), list) else [])]
    return any(isinstance(one, str) and one.strip() for one in given) or bool(raw.get("target_ids"))


def _key(cluster: Cluster, task: Task) -> str:
    """What an answer follows from, if it is not cut: model, prompt, parameters and content."""
    config = task.config
    parameters = {name: value for name, value in config.parameters.items() if name != "max_tokens"}
    asked = [config.model, task.prompts.summary, parameters, config.context, config.parted_by]
    return _hashed(json.dumps([asked, cluster.cut_into_paragraphs, cluster.title, cluster.documents]))


def _read(cluster: Cluster, config: TeachConfig) -> list[Paragraph]:
    """The paragraphs that are read, in the documents' order: all, or the best-ranked that fit into the context."""
    found = [*paragraphs_of(cluster, config.parted_by)]
    if sum(len(p.text) for p in found) <= config.context:
        return found
    order = best_first(rank_scores("tfidf", words(cluster.title), [p.words for p in found]))
    kept, left = list[int](), config.context
    for number in map(int, order):
        if len(found[number].text) <= left:
            kept.append(number)
            left -= len(found[number].text)
    if not kept:  # each is longer than the context
        best = found[order[0]]
        return [best._replace(text=next(pieces(best.text, config.context)))]
    return [found[number] for number in sorted(kept)]


def _filled(template: str, **values: str) -> str:
    """The template with each of the named slots filled; other braces stay as they are."""
    return _SLOT.sub(lambda slot: values.get(slot[1], slot[0]), template)


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
