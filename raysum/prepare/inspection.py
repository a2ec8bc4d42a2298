"""`raysum prepare --dry-run`: report the content of sources, by samples, and the commands that read them."""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain, islice, permutations
from pathlib import Path
from statistics import mean, median
from typing import Any

from raysum.errors import UserError
from raysum.prepare.cluster import IDS, id_arrays, read_cluster
from raysum.prepare.config import PrepareConfig
from raysum.prepare.job import check_out
from raysum.runtime.remote import is_url
from raysum.runtime.rendering import Shown
from raysum.sources.documents.read import is_document
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import DAMAGES, RawSource, find_sources, folders_of_rows, sample_path
from raysum.sources.folders import Contents
from raysum.sources.formats import TEXT, format_by_name
from raysum.sources.record import Rejected, split_of
from raysum.sources.staging import stage, with_urls
from raysum.sources.suggested_map import MIN_WORDS, mean_words, suggested_map
from raysum.sources.survey import Survey, root_of
from raysum.sources.tables import SeveralTablesError

_SOURCES, _ROWS = 20, 50  # sources that are read, and rows of each
_COUNTED = 1 << 22  # bytes of a source whose rows are counted, not estimated
_MAX_FOLDERS, _MAX_COMMANDS, _MAX_NAMES = 4, 5, 3
_PART = re.compile(r"(:\d+):\d+$")  # the number of a cluster in a row
_Options = Mapping[str, Any]  # of FieldMapping
_Way = tuple[Sequence[str], _Options, str]  # paths, options, and the pattern of the paths in a command


@dataclass
class Reading:
    """A way to read sources, and the clusters of a sample. It is usable if half of these are, and have words."""

    paths: Sequence[str]
    options: _Options
    problem: str = ""
    table_formats: Sequence[str] = ()  # of a file of several tables
    pattern: str = ""  # of ``paths`` in a command
    formats: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)  # clusters, extrapolated by size, so fractions
    rejected: Counter[str] = field(default_factory=Counter)  # clusters of the sample, by reason
    first: dict[str, str] = field(default_factory=dict)  # the first of each reason, with its detail
    documents: list[int] = field(default_factory=list)  # of each cluster
    words: list[int] = field(default_factory=list)  # of each document
    summaries: list[int] = field(default_factory=list)  # words of each
    titles: int = 0
    columns: dict[str, float] = field(default_factory=dict)  # words of the text in each, on average

    @property
    def is_usable(self) -> bool:
        return len(self.documents) > self.rejected.total() and any(self.words)

    def command(self, out: str) -> str:
        """Return the command that reads the sources; without summaries, it summarizes them."""
        paths = self.pattern or shlex.join(self.paths)
        values = [("map", value) for value in self.options["map"]]
        values += [(name, self.options[name]) for name in ("separator", "format", "summaries") if self.options[name]]
        options = "".join(f" --{name} {shlex.quote(value)}" for name, value in values)
        if not self.summaries:
            return f"raysum summarize lexrank {paths}{options}"
        held_out = " --valid 0.05 --test 0.05" * ({*self.splits} == {"no split"})
        return f"raysum prepare {paths}{options} --out {shlex.quote(out or 'data')}{held_out}"

    def lines(self) -> Iterator[str]:
        columns = ", ".join(name + f" ({_words(words)})" * (words >= 0.5) for name, words in self.columns.items())
        yield from [f"columns: {columns}"] * bool(columns)
        splits = ", ".join(f"{split} {count:,.0f}" for split, count in self.splits.items())
        yield f"clusters: about {self.splits.total():,.0f} ({splits}), by {', '.join(self.formats)}"
        yield f"documents: {_range(self.documents)} per cluster, {_range(self.words)} words each"
        yield f"summaries: {_range(self.summaries)} words each" if self.summaries else "summaries: none"
        yield f"titles: {self.titles} of {len(self.documents)} sampled clusters"
        yield from (f"rejected: {reason}" for reason in self.reasons())

    def reasons(self) -> Iterator[str]:
        """Yield how many clusters of the sample are rejected, for each reason."""
        for reason, count in self.rejected.items():
            yield f"{count} sampled cluster{'s' * (count != 1)}: {reason} (first: {self.first[reason]})"


@dataclass(frozen=True)
class Inspection(Shown):
    """The files at some paths, and the ways to read them: as they are given, and others that give more."""

    paths: Sequence[str]
    survey: Survey
    given: Reading
    others: Sequence[Reading]
    out: str = ""

    @property
    def readings(self) -> list[Reading]:
        return [self.given] * self.given.is_usable + [*self.others]

    @property
    def commands(self) -> list[str]:
        return [reading.command(self.out) for reading in self.readings]

    @property
    def problem(self) -> str:
        """The reason why no command reads the sources, or ""."""
        return "" if self.commands else self._reason()

    def _reason(self) -> str:
        return self.given.problem or "; ".join(self.given.reasons()) or "no cluster with words can be read"

    def to_dict(self) -> dict[str, Any]:
        """Return ``files`` and ``encodings`` with their numbers, ``bytes``, ``columns`` with their mean words,
        ``problem`` of the sources as given, ``commands``, and for the first one ``splits``, ``documents`` per cluster,
        ``words`` per document and per ``summary``, all as lists of the sample."""
        shown = [*self.readings, self.given][0]
        return {
            "files": {kind: len(files) for kind, files in self.survey.kinds.items()},
            "encodings": dict(self.survey.encodings),
            "bytes": self.survey.size,
            "columns": shown.columns,
            "problem": "" if self.given.is_usable else self._reason(),
            "commands": self.commands,
            "splits": {split: round(count) for split, count in shown.splits.items()},
            "documents": shown.documents,
            "words": shown.words,
            "summary": shown.summaries,
        }

    def render(self) -> str:
        count = sum(map(len, self.survey.kinds.values()))
        lines = [f"{', '.join(self.paths)}: {count:,} file{'s' * (count != 1)}, {self.survey.size / 1e6:,.2f} MB"]
        for kind, files in self.survey.kinds.items():
            names = ", ".join(file.name for file in files[:_MAX_NAMES]) + ", ..." * (len(files) > _MAX_NAMES)
            lines.append(f"  {len(files):,} {kind}: {names}")
        encodings = ", ".join(f"{name} {count}" for name, count in self.survey.encodings.most_common())
        lines += [f"encodings: {encodings}"] * bool(encodings)
        if not self.given.is_usable and (self.readings or not self.given.problem):  # else it is the command's error
            lines.append(f"not readable as it is: {self._reason()}")
        for reading in self.readings:
            lines += ["", *reading.lines(), f"  {reading.command(self.out)}"]
        return "\n".join(lines)


def inspect(paths: Sequence[str], config: PrepareConfig) -> Inspection:
    """Return what is at ``paths``, and the commands that read it."""
    options: _Options = {name: getattr(config, name) for name in ("map", "separator", "format", "summaries")}
    staged = [stage(path, True) if is_url(path) else [sample_path(Path(path).expanduser())] for path in paths]
    local = [*chain.from_iterable(staged)]
    given, others = _sampled(paths, options), list[Reading]()
    if not (roots := [root for root in map(root_of, local) if root.exists()]):
        raise UserError(given.problem)
    if not (given.is_usable and given.summaries):
        with redirect_stderr(StringIO()):  # reports about skipped files
            readings = [] if given.is_usable else [_with_map(given)]
            if len(roots) == 1 and not any(reading.is_usable for reading in readings):
                ways = _ways(paths[0], roots[0], roots == local, given)
                readings = [_with_map(_sampled(*way)) for way in ways]
            is_any = given.is_usable or any(reading.is_usable for reading in readings)
            if not is_any and roots[0].is_dir() and not _holds_only_rows(roots[0]):
                readings = [_sampled(paths, {**options, "format": TEXT})]
        others = [one for one in readings if one.is_usable and (one.summaries or not given.is_usable)][:_MAX_COMMANDS]
    others.sort(key=lambda reading: (not reading.summaries, -reading.splits.total()))
    return Inspection(paths, Survey.of(roots), given, others, config.out)


def _holds_only_rows(folder: Path) -> bool:
    """Return whether all files in ``folder`` have names of rows, which are no prose even if they are broken."""
    files = Contents.of(folder).files
    return bool(files) and all(map(format_by_name, files))


def _ways(name: str, root: Path, is_on_disk: bool, given: Reading) -> Iterator[_Way]:
    """Yield ways other than the ``given`` one to read the file or folder ``root``, called ``name`` by the user."""
    options = given.options
    yield from (([name], {**options, "format": format}, "") for format in given.table_formats)
    if not root.is_dir():
        if root.is_file() and not format_by_name(root) and not is_document(root):
            yield [name], {**options, "format": "csv"}, ""
        return

    def named(item: Path) -> str:
        return f"{name.rstrip('/')}/{item.relative_to(root)}"

    found = Contents.of(root)
    texts = Contents.of(root, any_suffix=True).document_folders
    if is_on_disk and len(texts) <= _MAX_FOLDERS:
        for documents, summaries in permutations(texts, 2):
            pair = [str(documents)], {**options, "summaries": str(summaries)}
            found_pairs = _sampled(*pair)
            if len(found_pairs.documents) > 1 and 2 * mean(found_pairs.summaries) < mean(found_pairs.words):
                yield *pair, ""
    for suffix in dict.fromkeys(file.suffix for file in found.files if format_by_name(file)):
        files = [file for file in found.files if file.suffix == suffix]
        for group in _by_columns(files):
            is_all = is_on_disk and 1 < len(group) == len(files)
            pattern = f"{shlex.quote(name.rstrip('/'))}/*{suffix}" if is_all else ""
            yield [*map(named, group)], options, pattern
    if found.document_folders and found.documents:
        pattern = f"{shlex.quote(name.rstrip('/'))}/*/" if is_on_disk else ""
        yield [*map(named, found.document_folders)], options, pattern
    ignored = ".json" if len(found.document_folders) > 1 else ""  # beside documents, as in a cluster
    for folder in (inner for item in found.folders for inner in folders_of_rows(item, ignored)):
        yield [named(folder)], options, ""


def _by_columns(files: Sequence[Path]) -> list[list[Path]]:
    """Return files of rows in groups whose first rows have the same fields, to separate tables from metadata."""
    groups = defaultdict[frozenset[str], list[Path]](list)
    for file in files if len(files) <= _SOURCES else []:
        row: Mapping[str, Any] = {}
        with suppress(UserError, *DAMAGES):
            row = next(chain.from_iterable(map(_raw_rows, find_sources([file]))), {})
        groups[frozenset(row)].append(file)
    return [*groups.values()] or [[*files]]


def _with_map(reading: Reading) -> Reading:
    """Return a reading that is not usable with a mapping of its columns, if that gives documents."""
    options = reading.options
    if not reading.is_usable and not options["map"]:
        with suppress(UserError, *DAMAGES):
            rows = [*_raw_rows(find_sources(reading.paths, FieldMapping.of([], format=options["format"]))[0])]
            mapped = _sampled(reading.paths, {**options, "map": suggested_map(rows)}, reading.pattern)
            return mapped if mapped.words and median(mapped.words) >= MIN_WORDS else reading
    return reading


def _sampled(paths: Sequence[str], options: _Options, pattern: str = "") -> Reading:
    reading = Reading(paths, options, pattern=pattern)
    try:
        sources = find_sources(paths, FieldMapping.of(*options.values()))
        sample = sources[:: len(sources) // _SOURCES + 1]
        share = sum(source.size for source in sources) / max(1, sum(source.size for source in sample))
        for source in sample:
            _add(reading, source, share)
    except (UserError, ValueError) as error:
        reading.problem = str(error)
        reading.table_formats = error.formats if isinstance(error, SeveralTablesError) else ()
        reading.documents.clear()
    return reading


def _add(reading: Reading, source: RawSource, share: float) -> None:
    """Add a sample of a source to ``reading``; the number of its clusters is multiplied by ``share``."""
    found = source.records()
    records = [*islice(found, _ROWS + 1)]
    count, records = float(len(records)), records[:_ROWS]
    if count > _ROWS and source.size <= _COUNTED:
        with suppress(UserError, ValueError):
            count += sum(1 for _ in found)
    elif count > _ROWS:
        lines = {_PART.sub(r"\1", record.where) for record in records}  # each may give several clusters
        sizes = [record.size or len(json.dumps(record.raw, default=str, ensure_ascii=False)) for record in records]
        count = max(count, source.size / max(1.0, mean(sizes)) * len(records) / len(lines))
    reading.formats[source.format.name] += 1
    for record in records:
        raw = record.raw if isinstance(record.raw, dict) else {}
        try:
            cluster = None if IDS in raw else read_cluster(record.cluster())
            texts = [text.split() for _, text in cluster.documents] if cluster else id_arrays(raw)[:-1]
        except Rejected as reason:
            reading.rejected[reason.reason] += 1
            where = Path(record.where).name + f", {reason.detail}" * bool(reason.detail)
            reading.first.setdefault(reason.reason, where)
            continue
        reading.splits[split_of(raw.get("split")) or source.split or "no split"] += count * share / len(records)  # type: ignore[assignment]
        reading.documents.append(len(texts))
        reading.words += map(len, texts)
        summaries = cluster.summaries if cluster else [str(raw.get("summary") or "")]
        reading.summaries += [len(summary.split()) for summary in summaries]
        reading.titles += bool(cluster.title if cluster else raw.get("title"))
    if source.format.is_table or source.format.name in ("jsonl", "json"):
        rows = [*_raw_rows(source)]
        names = dict.fromkeys(chain.from_iterable(rows))
        reading.columns |= {str(name): mean_words(rows, name) for name in names}


def _raw_rows(source: RawSource) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows as they are in the file."""
    part = source.summaries or source.mapping.table
    records = source.format.read(source.path, part) if part else source.format.read(source.path)
    yield from (record.raw for record in islice(records, _ROWS) if isinstance(record.raw, dict))


def _words(count: float) -> str:
    return f"{count:,.0f} word{'s' * (round(count) != 1)}"


def _range(values: Sequence[int]) -> str:
    """Return the median of numbers, with the smallest and largest."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{median(values):,.0f} ({low:,} to {high:,})"


def explain_unreadable(paths: Sequence[str], config: PrepareConfig) -> str:
    """Return the report on sources that cannot be read as they are given, or "" if they can
    or if ``out`` is the problem."""
    with suppress(UserError), redirect_stderr(StringIO()):
        check_out(config.out, paths)
        found = inspect(paths, config)
        return "" if found.given.is_usable else with_urls(found.render())
    return ""
