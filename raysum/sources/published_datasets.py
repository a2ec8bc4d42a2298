"""Rows of published datasets, known by their keys, as clusters with our fields."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raysum.sources.record import Record

Raw = Mapping[str, Any]
_OURS = {"documents", "paragraphs"}
_SEPARATOR = re.compile(r"\|{5}|\bstory_separator_special_tag\b")
_MARKS = re.compile(r"</?t>")
_CITED = re.compile(r"@cite_\d+")


@dataclass(frozen=True)
class Known:
    """A published dataset: its name, keys that its rows have, and its rows as ours."""

    name: str
    keys: frozenset[str]
    convert: Callable[[Raw], dict[str, Any]]


def multi_news(raw: Raw) -> dict[str, Any]:
    """Multi-News (Fabbri et al. 2019) and others in its form: articles in one text; summaries may begin with a dash."""
    text = raw["document"]
    documents = [part.replace("NEWLINE_CHAR", "\n").strip() for part in _SEPARATOR.split(text)] if text else []
    return _kept(raw, "document", "summary") | {
        "documents": [document for document in documents if document],
        **({} if raw.get("summary") is None else {"summary": _without_dash(raw["summary"])}),
    }


def _without_dash(text: Any) -> Any:
    return text.replace("NEWLINE_CHAR", "\n").strip().removeprefix("–").strip() if isinstance(text, str) else text


def _wcep(raw: Raw) -> dict[str, Any]:
    """WCEP (Gholipour Ghalandari et al. 2020): articles about an event, and a summary of it."""
    return _kept(raw, "articles") | {"documents": [_article(one, n) for n, one in enumerate(raw["articles"], 1)]}


def _article(one: Any, number: int) -> Any:
    if not isinstance(one, Mapping):
        return one
    text = "\n".join(part for part in (one.get("title"), one.get("text")) if isinstance(part, str) and part)
    return {"source": one.get("url") or one.get("id") or f"article {number}", "text": text}


def _multi_xscience(raw: Raw) -> dict[str, Any]:
    """Multi-XScience (Lu et al. 2020): a paper's abstract and those that it cites; the summary is its related work.

    Every ``@cite_N`` becomes ``@cite``, as its authors evaluate.
    """
    cited = raw["ref_abstract"]
    if {"cite_N", "abstract"} <= cited.keys():  # columns, in the Hugging Face form
        found = list(zip(cited["cite_N"], cited["abstract"], strict=False))
    else:
        found = [(name, one.get("abstract")) for name, one in cited.items() if isinstance(one, Mapping)]
    documents = [("abstract", raw["abstract"]), *found]
    return _kept(raw, "abstract", "related_work", "ref_abstract", "aid") | {
        "id": str(raw.get("aid") or raw.get("id") or ""),
        "documents": [{"source": name, "text": text} for name, text in documents if text],
        "summary": _CITED.sub("@cite", raw["related_work"]) if raw["related_work"] else "",
    }


def _cnn_dailymail(raw: Raw) -> dict[str, Any]:
    """CNN/DailyMail: one article, and its highlights on lines."""
    return _kept(raw, "article", "highlights") | {"documents": [raw["article"]], "summary": raw["highlights"]}


def _wikihow(raw: Raw) -> dict[str, Any]:
    """The WikiHow set that is also called WikiSum: one article a row."""
    return _kept(raw, "article") | {"documents": [raw["article"]]}


def _primera(raw: Raw) -> dict[str, Any]:
    """The WikiSum subset of PRIMERA (Xiao et al. 2022): paragraphs, and the summary."""
    return _kept(raw, "text", "tgt") | {"paragraphs": raw["text"], "summary": raw["tgt"]}


def _ranked(raw: Raw) -> dict[str, Any]:
    """Ranked WikiSum (Liu and Lapata 2019) and GraphSum's data (Li et al. 2020): ids, best-ranked paragraph first."""
    summary = raw.get("tgt_str")
    graphs = {name: raw[name] for name in ("sim_graph", "topic_graph", "discourse_graph") if raw.get(name) is not None}
    return {
        **({"id": raw["id"]} if raw.get("id") is not None else {}),
        "paragraph_ids": raw["src"],
        "target_ids": raw["tgt"],
        **({"summary": _MARKS.sub(" ", summary).replace("<Q>", "\n")} if isinstance(summary, str) else {}),
        **({"paragraph_texts": raw["src_str"]} if isinstance(raw.get("src_str"), list) else {}),
        **({"graphs": graphs} if graphs else {}),
    }


KNOWN = {
    one.name: one
    for one in (
        Known("wikihow", frozenset(("url", "summary", "article", "step_headers")), _wikihow),
        Known("multi-xscience", frozenset(("abstract", "related_work", "ref_abstract")), _multi_xscience),
        Known("cnn-dailymail", frozenset(("article", "highlights")), _cnn_dailymail),
        Known("wcep", frozenset(("articles", "summary")), _wcep),
        Known("multi-news", frozenset(("document", "summary")), multi_news),
        Known("primera", frozenset(("text", "tgt")), _primera),
        Known("ranked", frozenset(("src", "tgt")), _ranked),
    )
}


def known_as(keys: Collection[str], asked: str | None = None) -> Known | None:
    """The dataset ``asked`` for, or else the one whose rows have such keys, where ours are not among them."""
    if asked in KNOWN:
        return KNOWN[asked]
    return next((one for one in KNOWN.values() if one.keys <= set(keys)), None) if _OURS.isdisjoint(keys) else None


def as_ours(record: Record, asked: str | None = None) -> Record:
    """A row of a published dataset with our fields; any other as it is."""
    known = known_as(record.raw, asked)
    if known is None:
        return record
    if lacking := sorted(known.keys - record.raw.keys()):
        return replace(record, problem=f"no row of {known.name}", detail=f"it has no {lacking[0]}")
    try:
        return replace(record, raw=known.convert(record.raw))
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        return replace(record, problem=f"no row of {known.name}", detail=str(error))


def _kept(raw: Raw, *others: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in others}
