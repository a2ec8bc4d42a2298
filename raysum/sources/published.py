"""Published datasets: their file formats, and the conversion of their rows, which keys identify, to our fields."""

import os
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.record import LONGEST, Record, Rejected, bounded_lines, decode_utf8, text_record
from raysum.sources.staging import local_content, opened

Raw = Mapping[str, Any]
SOURCES = re.compile(r"(^|\.)src(\.cleaned|\..*\.txt)?$")  # names of files
_HIGHLIGHT = re.compile(r"^@highlight[^\S\n]*$", re.MULTILINE)
_OURS = {"documents", "paragraphs"}
_SEPARATOR = re.compile(r"\|{5}|\bstory_separator_special_tag\b")
_MARKS = re.compile(r"</?t>")
_CITED = re.compile(r"@cite_\d+")


@dataclass(frozen=True)
class PublishedDataset:
    """The keys of a published dataset's rows, and the function that converts a row to our fields."""

    name: str
    keys: frozenset[str]
    convert: Callable[[Raw], dict[str, Any]]


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
    """Convert CNN/DailyMail, whose highlights are lines of the summary, and WikiHow, which is also called WikiSum."""
    summary = raw["highlights"] if "highlights" in raw else raw["summary"]
    return _without(raw, "article", "highlights") | {"documents": [raw["article"]], "summary": summary}


def _primera(raw: Raw) -> dict[str, Any]:
    """Convert the WikiSum subset of PRIMERA (Xiao et al. 2022): paragraphs, and the summary."""
    return _without(raw, "text", "tgt") | {"paragraphs": raw["text"], "summary": raw["tgt"]}


def _ranked(raw: Raw) -> dict[str, Any]:
    """Convert ranked WikiSum (Liu and Lapata 2019) and GraphSum's data (Li et al. 2020): ids, best paragraph first."""
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


PUBLISHED = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset("wikihow", frozenset(("url", "summary", "article", "step_headers")), _one_article),
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
    return next((dataset for dataset in PUBLISHED.values() if dataset.keys <= set(keys)), None)


def with_our_fields(raw: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return the row of a published dataset with our fields, and any other row unchanged.

    Raises Rejected if it only looks like such a row.
    """
    dataset = published_dataset(raw, name)
    if dataset is None:
        return raw
    try:
        if missing := sorted(dataset.keys - raw.keys()):
            raise ValueError(f"it has no {missing[0]}")
        return {field: value for field, value in dataset.convert(raw).items() if value is not None}
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise Rejected(f"not a row of {dataset.name}", str(error)) from None


def _without(raw: Raw, *names: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}


def read_story(path: Path) -> Iterator[Record]:
    """Yield the one cluster of a story of CNN/DailyMail: the text before the first ``@highlight``, and each highlight
    as a line of the summary."""
    with opened(path) as file:
        content = file.read(LONGEST + 1)
    yield text_record(str(path), content if len(content) <= LONGEST else None, partial(_story, path.stem))


def _story(name: str, text: str) -> dict[str, Any]:
    body, *highlights = _HIGHLIGHT.split(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    lines = filter(None, (" ".join(highlight.split()) for highlight in highlights))
    summary = {"summary": "\n".join(lines)} if highlights else {}
    return {"id": name, "documents": [body.strip()] if body.strip() else [], **summary}


def read_pairs(path: Path) -> Iterator[Record]:
    """Yield the clusters of ``NAME.src...`` (Multi-News), one a line, with the summaries of ``NAME.tgt...``, if it
    exists.

    ``|||||`` or ``story_separator_special_tag`` separate the documents of a line, and ``NEWLINE_CHAR`` is a line break.
    Raises UserError if the files have different numbers of lines.
    """
    targets = targets_of(path)
    with opened(path) as file, opened(targets) if targets else nullcontext() as target_file:
        sources = bounded_lines(file.readline)
        pairs: Iterable[tuple[bytes | None, bytes | None]] = zip(sources, repeat(None))
        if target_file:
            pairs = zip_longest(sources, bounded_lines(target_file.readline), fillvalue=b"")
        for number, (source, target) in enumerate(pairs, 1):
            if b"" in (source, target):
                longer = targets if source == b"" else path
                raise UserError(
                    f"{path} and {targets} must have the same number of lines: {longer} has a line {number} that the "
                    "other lacks; fetch both again"
                )
            where = f"{path}:{number}"
            yield text_record(where, source, partial(_pair, where, target))


def _pair(where: str, target: bytes | None, source: str) -> dict[str, Any]:
    summary = None if target is None else decode_utf8(where, target).removeprefix("\ufeff")
    return with_our_fields({"document": source.removeprefix("\ufeff"), "summary": summary}, "multi-news")


def targets_of(path: Path) -> Path | None:
    """Return the file of summaries beside ``path``, or None. Cleaned sources use the summaries of the original ones.

    Raises UserError if it is a link out of both the folder of ``path`` and that of its target.
    """
    name = re.sub(r"(?<=\.)src(?=\.|$)", "tgt", path.name)
    candidates = [path.with_name(other) for other in (name, name.removesuffix(".cleaned")) if other != path.name]
    targets = next(filter(Path.is_file, candidates), None)
    if targets and all(leads_out(targets, folder) for folder in (path.parent, Path(os.path.realpath(path)).parent)):
        raise UserError(f"{targets} is a link out of its folder; copy the file of summaries there")
    return targets


def unpaired(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a message for each file of sources without summaries, and of summaries without sources, in ``paths``."""
    for path in paths:
        files = [path] if path.is_file() else [*path.glob("*src*"), *path.glob("*tgt*")]
        pairs = {file: targets_of(file) for file in files if SOURCES.search(file.name)}
        for file, targets in sorted(pairs.items()):
            if targets is None:
                yield f"{file} has no file of summaries beside it (expected {file.name.replace('src', 'tgt')})"
        for file in sorted({*files} - {*pairs} - {*pairs.values()}):
            if path.is_dir() and SOURCES.search(file.name.replace("tgt", "src")):
                sources = file.name.replace("tgt", "src")
                yield f"{file} is skipped: it has no file of sources beside it (expected {sources})"


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
