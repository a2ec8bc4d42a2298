"""Published datasets: their file formats, and the conversion of their rows, which keys identify, to our fields."""

import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.conversations import discord, issue, transcript
from raysum.sources.record import LONGEST, Record, Rejected, text_record
from raysum.sources.staging import local_content, natural_key, opened_text

Raw = Mapping[str, Any]
_MARK = re.compile(r"^@(highlight|subject|ann\d+)[^\S\n]*$", re.MULTILINE)
_OURS = {"documents", "paragraphs"}
_SEPARATOR = re.compile(r"\|{5}|\bstory_separator_special_tag\b")
_MARKS = re.compile(r"</?t>")
_SENTENCE_MARKS = re.compile(r"</?S>")
_CITED = re.compile(r"@cite_\d+")


@dataclass(frozen=True)
class PublishedDataset:
    """The keys of a published dataset's rows, and the function that converts a row to our fields, or to several rows.

    ``is_exact``: its rows have no other keys, since the keys alone would be too common.
    """

    name: str
    keys: frozenset[str]
    convert: Callable[[Raw], dict[str, Any] | list[dict[str, Any]]]
    is_exact: bool = False

    def fits(self, keys: Collection[str]) -> bool:
        """Return whether rows with these ``keys`` are of the dataset."""
        return self.keys == set(keys) if self.is_exact else self.keys <= set(keys)


def _multi_news(raw: Raw) -> dict[str, Any]:
    """Convert Multi-News (Fabbri et al. 2019): all articles in one text, summaries that begin with a dash."""
    summary, documents = raw.get("summary"), map(_with_line_ends, _SEPARATOR.split(raw["document"] or ""))
    return _without(raw, "document") | {
        "documents": [document for document in documents if document],
        "summary": _with_line_ends(summary).removeprefix("–").strip() if isinstance(summary, str) else summary,
    }


def _with_line_ends(text: str) -> str:
    return text.replace("NEWLINE_CHAR", "\n").strip()


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


def _one_article(raw: Raw) -> dict[str, Any]:
    """Convert CNN/DailyMail (its highlights are lines of the summary) and WikiHow, which is also called WikiSum."""
    summary = raw["highlights"] if "highlights" in raw else raw["summary"]
    return _without(raw, "article", "highlights") | {"documents": [raw["article"]], "summary": summary}


def _primera(raw: Raw) -> dict[str, Any]:
    """Convert the WikiSum subset of PRIMERA (Xiao et al. 2022): paragraphs, and the summary."""
    return _without(raw, "text", "tgt") | {"paragraphs": raw["text"], "summary": raw["tgt"]}


def _ranked(raw: Raw) -> dict[str, Any]:
    """Convert ranked WikiSum (Liu and Lapata 2019) and GraphSum's data (Li et al. 2020): ids, best paragraph first.

    Rows of any other dataset have a text as ``src``: the documents, as in Multi-News.
    """
    if isinstance(raw["src"], str):
        return _multi_news(_without(raw, "src", "tgt") | {"document": raw["src"], "summary": raw["tgt"]})
    summary, texts = raw.get("tgt_str"), raw.get("src_str")
    graphs = {name: raw[name] for name in ("sim_graph", "topic_graph", "discourse_graph") if raw.get(name) is not None}
    return {
        "id": raw.get("id"),
        "paragraph_ids": raw["src"],
        "target_ids": raw["tgt"],
        "summary": _MARKS.sub(" ", summary).replace("<Q>", "\n") if isinstance(summary, str) else None,
        "paragraph_texts": texts if isinstance(texts, list) else None,
        "graphs": graphs or None,
    }


def _wikihow_table(raw: Raw) -> dict[str, Any]:
    """Convert wikihowAll.csv and wikihowSep.csv (Koupaee and Wang 2018): the bold lines are the summary."""
    return _without(raw, "text", "headline") | {"documents": [raw["text"]], "summary": raw["headline"].strip()}


def _fewsum(raw: Raw) -> dict[str, Any]:
    """Convert the gold summaries of FewSum (Brazinskas et al. 2020): reviews of a product, and three summaries."""
    return {"id": raw["group_id"], "documents": _numbered(raw, "rev"), "summaries": _numbered(raw, "summ")}


def _scitldr(raw: Raw) -> dict[str, Any]:
    """Convert SciTLDR (Cachola et al. 2020): the sentences of a paper, and one-sentence summaries by several people."""
    text = " ".join(sentence.strip() for sentence in raw["source"])
    return {"id": raw["paper_id"], "title": raw.get("title"), "documents": [text], "summaries": raw["target"]}


def _dialogue(raw: Raw) -> dict[str, Any]:
    """Convert DialogSum (Chen et al. 2021; three summaries in its test split) and SAMSum (Gliwa et al. 2019)."""
    rest = {name: value for name, value in raw.items() if not re.match("dialogue|fname|topic|summary", name)}
    id = {"id": raw.get("fname") or raw.get("id")}
    return rest | id | {"documents": [raw["dialogue"]], "summaries": _numbered(raw, "summary") or None}


def _qmsum(raw: Raw) -> list[dict[str, Any]]:
    """Convert a meeting of QMSum (Zhong et al. 2021) to a cluster for each query, which is the title."""
    turns = [(turn["speaker"], turn["speaker"], turn["content"]) for turn in raw["meeting_transcripts"]]
    meeting = transcript("meeting", turns)
    queries = [*raw["general_query_list"], *raw["specific_query_list"]]
    return [{"title": one["query"], "documents": [meeting], "summary": one["answer"]} for one in queries]


def _scientific(raw: Raw) -> dict[str, Any]:
    """Convert arXiv and PubMed (Cohan et al. 2018): the sections of a paper, and its abstract with marked sentences."""
    sections, names = raw.get("sections") or [raw["article_text"]], [*(raw.get("section_names") or [])]
    names += [f"section {n}" for n in range(len(names) + 1, len(sections) + 1)]
    documents = [{"source": name, "text": "\n".join(part)} for name, part in zip(names, sections, strict=False)]
    summary = "\n".join(_SENTENCE_MARKS.sub("", sentence).strip() for sentence in raw["abstract_text"])
    return {"id": raw.get("article_id"), "documents": documents, "summary": summary}


def _ms2(raw: Raw) -> dict[str, Any]:
    """Convert MS^2 and the Cochrane set (DeYoung et al. 2021): titles and abstracts of studies, and the conclusion."""
    ids = raw.get("pmid") or [f"study {n}" for n, _ in enumerate(raw["abstract"], 1)]
    studies = zip(ids, raw["title"], raw["abstract"], strict=True)
    documents = [{"source": str(id), "text": f"{title}\n\n{abstract}".strip()} for id, title, abstract in studies]
    return {"id": str(raw["review_id"]), "documents": documents, "summary": raw["target"]}


def _numbered(raw: Raw, name: str) -> list[Any]:
    """Return the values of ``name`` and of ``name`` with a number that are not empty, in natural order."""
    names = sorted((key for key in raw if re.fullmatch(rf"{name}\d*", key)), key=natural_key)
    return [raw[key] for key in names if raw[key]]


PUBLISHED = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset("wikihow", frozenset(("url", "summary", "article", "step_headers")), _one_article),
        PublishedDataset("wikihow-table", frozenset(("headline", "title", "text")), _wikihow_table, is_exact=True),
        PublishedDataset("wikihow-sections", frozenset(("headline", "sectionLabel", "text")), _wikihow_table),
        PublishedDataset("fewsum", frozenset(("group_id", "rev1", "summ1")), _fewsum),
        PublishedDataset("scitldr", frozenset(("source", "target", "paper_id")), _scitldr),
        PublishedDataset("dialogsum", frozenset(("dialogue", "fname")), _dialogue),
        PublishedDataset("dialogue", frozenset(("dialogue", "summary")), _dialogue),
        PublishedDataset("qmsum", frozenset(("meeting_transcripts", "general_query_list")), _qmsum),
        PublishedDataset("discord", frozenset(("guild", "channel", "messages")), discord),
        PublishedDataset("github-issues", frozenset(("title", "body", "comments")), issue),
        PublishedDataset("arxiv-pubmed", frozenset(("article_text", "abstract_text")), _scientific),
        PublishedDataset("ms2", frozenset(("review_id", "title", "abstract", "target")), _ms2),
        PublishedDataset("multi-xscience", frozenset(("abstract", "related_work", "ref_abstract")), _multi_xscience),
        PublishedDataset("cnn-dailymail", frozenset(("article", "highlights")), _one_article),
        PublishedDataset("wcep", frozenset(("articles", "summary")), _wcep),
        PublishedDataset("multi-news", frozenset(("document", "summary")), _multi_news),
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
    return next((dataset for dataset in PUBLISHED.values() if dataset.fits(keys)), None)


def with_our_fields(raw: dict[str, Any], name: str | None = None) -> list[dict[str, Any]]:
    """Return the rows with our fields that a row of a published dataset gives, and any other row unchanged.

    Raises Rejected if it only looks like such a row.
    """
    dataset = published_dataset(raw, name)
    if dataset is None:
        return [raw]
    try:
        if missing := sorted(dataset.keys - raw.keys()):
            raise ValueError(f"it has no {missing[0]}")
        rows = dataset.convert(raw)
        rows = rows if isinstance(rows, list) else [rows]
        return [{field: value for field, value in row.items() if value is not None} for row in rows]
    except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise Rejected(f"not a row of {dataset.name}", str(error)) from None


def _without(raw: Raw, *names: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}


def read_story(path: Path) -> Iterator[Record]:
    """Yield the one cluster of a story of CNN/DailyMail or an e-mail of AESLC: the text before the first mark.

    Each ``@highlight`` is a line of the summary. A ``@subject`` and each ``@ann0`` is a summary of its own.
    """
    with opened_text(path) as file:
        content = file.read(LONGEST + 1)
    yield text_record(str(path), content if len(content) <= LONGEST else None, partial(_story, path.stem))


def _story(name: str, text: str) -> dict[str, Any]:
    body, *parts = _MARK.split(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    texts = (" ".join(part.split()) for part in parts[1::2])
    marked = [(mark, text) for mark, text in zip(parts[::2], texts, strict=True) if text]
    row: dict[str, Any] = {"id": name, "documents": [body.strip()] if body.strip() else []}
    if "highlight" in parts[::2]:
        row["summary"] = "\n".join(text for mark, text in marked if mark == "highlight")
    if others := [text for mark, text in marked if mark != "highlight"]:
        row["summaries"] = others
    return row


def read_torch_list(path: Path) -> Iterator[Record]:
    """Yield the items of a list saved by torch: ranked WikiSum and PRIMERA's datasets.

    Only lists, dictionaries, numbers and texts are loaded. Raises UserError if the file holds other objects or no list.
    """
    import pickle

    import torch

    with local_content(path) as file:
        _refuse_compressed(path, file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            name = re.search(r"GLOBAL (\S+)", str(error))
            content = f"more than lists, numbers and texts ({name[1]})" if name else "no data saved by torch"
            raise UserError(
                f"{path} holds {content}; loading it could run code, so save it as plain lists or as JSON lines"
            ) from None
        except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError):
            raise UserError(
                f"{path} is not a readable list saved by torch: it is cut, damaged or of another format; fetch it again"
            ) from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds one {type(rows).__name__} and no list of clusters; save a list of dictionaries")
    for number, row in enumerate(rows, 1):
        yield Record(f"{path}:{number}", row)


def _refuse_compressed(path: Path, file: Path) -> None:
    """Raises UserError if a part of the file is compressed: torch never compresses, and it may unpack to any size."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise UserError(f"{path} is compressed, which torch never does; save it again, or as JSON lines")
