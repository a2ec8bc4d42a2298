"""Convert rows of published datasets, which their keys identify, to clusters with our fields."""

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
class PublishedDataset:
    """The name of a published dataset, the keys of its rows, and the function that converts a row."""

    name: str
    keys: frozenset[str]
    convert: Callable[[Raw], dict[str, Any]]


def multi_news(raw: Raw) -> dict[str, Any]:
    """Convert Multi-News (Fabbri et al. 2019) and similar datasets: all articles in one text, summaries with a dash."""
    text = raw["document"]
    documents = [part.replace("NEWLINE_CHAR", "\n").strip() for part in _SEPARATOR.split(text)] if text else []
    return _without(raw, "document", "summary") | {
        "documents": [document for document in documents if document],
        **({} if raw.get("summary") is None else {"summary": _without_dash(raw["summary"])}),
    }


def _without_dash(text: Any) -> Any:
    return text.replace("NEWLINE_CHAR", "\n").strip().removeprefix("–").strip() if isinstance(text, str) else text


def _wcep(raw: Raw) -> dict[str, Any]:
    """Convert WCEP (Gholipour Ghalandari et al. 2020): articles about an event, and its summary."""
    return _without(raw, "articles") | {"documents": [_article(item, n) for n, item in enumerate(raw["articles"], 1)]}


def _article(item: Any, number: int) -> Any:
    if not isinstance(item, Mapping):
        return item
    text = "\n".join(part for part in (item.get("title"), item.get("text")) if isinstance(part, str) and part)
    return {"source": item.get("url") or item.get("id") or f"article {number}", "text": text}


def _multi_xscience(raw: Raw) -> dict[str, Any]:
    """Convert Multi-XScience (Lu et al. 2020): the abstracts of a paper and of its references, and its related work.

    Every ``@cite_N`` becomes ``@cite``, as in the authors' evaluation.
    """
    cited = raw["ref_abstract"]
    if {"cite_N", "abstract"} <= cited.keys():  # columns, in the Hugging Face form
        references = list(zip(cited["cite_N"], cited["abstract"], strict=False))
    else:
        references = [(name, paper.get("abstract")) for name, paper in cited.items() if isinstance(paper, Mapping)]
    documents = [("abstract", raw["abstract"]), *references]
    return _without(raw, "abstract", "related_work", "ref_abstract", "aid") | {
        "id": str(raw.get("aid") or raw.get("id") or ""),
        "documents": [{"source": name, "text": text} for name, text in documents if text],
        "summary": _CITED.sub("@cite", raw["related_work"]) if raw["related_work"] else "",
    }


def _cnn_dailymail(raw: Raw) -> dict[str, Any]:
    """Convert CNN/DailyMail: one article, and its highlights as lines."""
    return _without(raw, "article", "highlights") | {"documents": [raw["article"]], "summary": raw["highlights"]}


def _wikihow(raw: Raw) -> dict[str, Any]:
    """Convert the WikiHow dataset that is also called WikiSum: one article a row."""
    return _without(raw, "article") | {"documents": [raw["article"]]}


def _primera(raw: Raw) -> dict[str, Any]:
    """Convert the WikiSum subset of PRIMERA (Xiao et al. 2022): paragraphs, and the summary."""
    return _without(raw, "text", "tgt") | {"paragraphs": raw["text"], "summary": raw["tgt"]}


def _ranked(raw: Raw) -> dict[str, Any]:
    """Convert ranked WikiSum (Liu and Lapata 2019) and GraphSum's data (Li et al. 2020): ids, best paragraph first."""
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


PUBLISHED = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset("wikihow", frozenset(("url", "summary", "article", "step_headers")), _wikihow),
        PublishedDataset("multi-xscience", frozenset(("abstract", "related_work", "ref_abstract")), _multi_xscience),
        PublishedDataset("cnn-dailymail", frozenset(("article", "highlights")), _cnn_dailymail),
        PublishedDataset("wcep", frozenset(("articles", "summary")), _wcep),
        PublishedDataset("multi-news", frozenset(("document", "summary")), multi_news),
        PublishedDataset("primera", frozenset(("text", "tgt")), _primera),
        PublishedDataset("ranked", frozenset(("src", "tgt")), _ranked),
    )
}


def published_dataset(keys: Collection[str], name: str | None = None) -> PublishedDataset | None:
    """Return the dataset called ``name``, or the first one with these ``keys``. Rows with our own fields have none."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if not _OURS.isdisjoint(keys):
        return None
    return next((dataset for dataset in PUBLISHED.values() if dataset.keys <= set(keys)), None)


def with_our_fields(record: Record, name: str | None = None) -> Record:
    """Return the row of a published dataset with our fields, and any other row unchanged."""
    dataset = published_dataset(record.raw, name)
    if dataset is None:
        return record
    if missing := sorted(dataset.keys - record.raw.keys()):
        return replace(record, problem=f"not a row of {dataset.name}", detail=f"it has no {missing[0]}")
    try:
        return replace(record, raw=dataset.convert(record.raw))
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        return replace(record, problem=f"not a row of {dataset.name}", detail=str(error))


def _without(raw: Raw, *names: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}
