"""`raysum prepare`: sources and choices in, a complete dataset folder out, or nothing."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysum.data.clean import normalize
from raysum.data.dataset import REJECTED, VOCABULARY
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.vocabulary import Vocabulary, sample_texts
from raysum.errors import UserError
from raysum.prepare.pipeline import Rejected, read_cluster
from raysum.prepare.shards import write_shards
from raysum.prepare.sources.files import Source, cluster_id, find_sources
from raysum.prepare.splits import Splitting
from raysum.run import new_folder
from raysum.runtime.progress import say, track
from raysum.runtime.session import start_ray


def prepare(
    sources: list[str],
    out: str,
    vocab: str | None = None,
    pieces: int = 32000,
    split: str | None = None,
    hold_out: Mapping[str, float] | None = None,
    max_rejected: float = 0.1,
    address: str | None = None,
    **recipe: Any,
) -> dict[str, Any]:
    """Make the dataset ``out`` of files and folders (see raysum.prepare.sources.files), through Ray at ``address``.

    ``vocab`` is a SentencePiece model; without one, ``pieces`` pieces are trained on the train split
    (32,000 as in the HT paper, section 4). ``split`` puts all clusters into that split; ``hold_out`` gives shares of
    those whose split nothing tells, e.g. {"valid": 0.05}. ``recipe`` are fields of Recipe; ``normalize`` is by default
    what the vocabulary needs. Returns ``data`` (the path), ``seconds``, ``rows_in``, ``rows``, ``rejected`` by reason,
    ``splits`` (rows of each) and ``pieces``.

    ``out`` appears complete, by renaming. Raises UserError for a mistake in sources or choices; it is then not made.
    """
    began = time.monotonic()
    splitting = Splitting(split, hold_out or {})
    chosen = {key: value for key, value in recipe.items() if value is not None}
    read_recipe(chosen | {"vocabulary_sha256": ""}, "this call")
    given = Vocabulary.load(vocab) if vocab else None
    found = find_sources(sources)
    whole = Path(out).expanduser().absolute()
    with new_folder(whole) as folder:
        how = chosen.setdefault("normalize", given.suggested_normalization() if given else "none")
        vocabulary = given or _train_vocabulary(found, splitting, pieces, how)
        (folder / VOCABULARY).write_bytes(vocabulary.model)
        complete = Recipe(**chosen, vocabulary_sha256=vocabulary.sha256)
        start_ray(address)
        kept = whole.with_name(f"{whole.name}.{REJECTED}")
        manifest = write_shards(found, folder, complete, vocabulary, splitting, max_rejected, kept)
    return {
        "data": out,
        "seconds": round(time.monotonic() - began, 2),
        "rows_in": manifest["rows_in"],
        "rows": manifest["rows"],
        "rejected": manifest["rejected"],
        "splits": {name: entry["rows"] for name, entry in manifest["splits"].items()},
        "pieces": manifest["pieces"],
    }


def _train_vocabulary(sources: list[Source], splitting: Splitting, pieces: int, how: Any) -> Vocabulary:
    texts = track(_train_texts(sources, splitting), label="vocabulary", unit="cluster")
    sample = sample_texts(texts, pieces)
    vocabulary = Vocabulary.train((normalize(text, how) for text in sample), pieces)
    if len(vocabulary) < pieces:
        say(f"The corpus gives {len(vocabulary)} pieces, not {pieces}: the vocabulary is that small")
    return vocabulary


def _train_texts(sources: list[Source], splitting: Splitting) -> Iterator[tuple[str, list[str]]]:
    """Id and texts of each readable cluster of the train split; the others are left to the job, which counts them.

    Raises UserError where there are only others.
    """
    readable, first = False, ""
    for source in sources:
        for record in source.records():
            try:
                if record.problem:
                    raise Rejected(f"{record.problem} ({record.detail})")
                cluster = read_cluster(record.raw)
            except Rejected as reason:
                first = first or f"{record.where}: {reason}"
                continue
            name = cluster_id(record)
            if splitting.of(name, record.raw.get("split"), source.split) == "train":
                readable = True
                yield name, [cluster.title, cluster.summary, *(text for _, text in cluster.documents)]
    if first and not readable:
        raise UserError(f"no cluster of the train split can be read; the first that cannot is {first}")
