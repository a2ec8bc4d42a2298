"""What the flat Transformer reads: paragraphs joined to one sequence, as the published code feeds it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_models import pack
from helpers.small_runs import DOCUMENTS, write_random_run
from helpers.small_trainings import trained
from helpers.special_ids import EOS, PAD, PARAGRAPH_END
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.data.recipe import Recipe
from raysum.decode.summarizer import Summarizer
from raysum.models.batch import Source
from raysum.models.family.spec import FamilySpec
from raysum.prepare.row_builder import prepare_example
from raysum.stream.collators.summarization import Summarization, cut_source
from raysum.stream.loader import read_rows
from raysum.tokenizers.sentence_piece import Vocabulary

SIZES = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2}


def published(paragraphs: list[list[int]], limit: int) -> list[int]:
    """hiersumm's input: <P> between paragraphs, cut, then EOS."""
    joined = [token for paragraph in paragraphs for token in [*paragraph, PARAGRAPH_END]][:-1]
    return [*joined[:limit], EOS]


def cut(paragraphs: list[list[int]], **limits: int) -> list[list[int]]:
    ids = np.array([token for paragraph in paragraphs for token in paragraph])
    offsets = np.cumsum([0, *map(len, paragraphs)])
    row = {"ids": ids, "paragraph_offsets": offsets}
    found, lengths = cut_source(row, SourceConfig(**limits), joined=True)
    assert len(found) == lengths.sum() and (lengths > 0).all()
    return [part.tolist() for part in np.split(found, np.cumsum(lengths)[:-1])]


def test_joined_paragraphs_are_the_published_input(shared):
    with np.load(shared / "fixtures" / "hiersumm_ht.npz") as ht, np.load(shared / "fixtures" / "hiersumm_ft.npz") as ft:
        for example, flat in zip(ht["in/src"].tolist(), ft["in/src"].tolist(), strict=True):
            rows = [[token for token in row if token != PAD] for row in example]
            found = [token for paragraph in cut([row for row in rows if row]) for token in paragraph]
            assert found == [token for token in flat if token != PAD]


def test_marks_belong_to_the_paragraphs_they_end():
    assert cut([[10, 11], [12], [13, 14]]) == [[10, 11, 7], [12, 7], [13, 14, 5]]
    assert cut([[10, 11], [], [13, 14]]) == [[10, 11, 7], [13, 14, 5]]
    assert cut([[10, 11, 12], [13, 14]], paragraph_tokens=2, max_paragraphs=1) == [[10, 11, 5]]
    assert cut([[10]]) == [[10, 5]]


@pytest.mark.parametrize("limit", range(1, 16))
def test_the_cut_counts_the_marks_and_ends_with_one(limit):
    paragraphs = [[10, 11, 12], [13], [14, 15, 16, 17]]
    found = cut(paragraphs, max_tokens=limit)
    assert [token for paragraph in found for token in paragraph] == published(paragraphs, max(limit - 1, 1))
    starts = [paragraph[0] for paragraph in found]
    assert starts == [10, 13, 14][: len(found)], "paragraphs keep their boundaries"


def test_costs_bound_what_is_read():
    kind, rng = Summarization(joined=True), np.random.default_rng(0)
    for limit in (None, 5, 12, 40):
        source = SourceConfig(max_paragraphs=4, paragraph_tokens=6, max_tokens=limit)
        sizes = rng.integers(1, 10, rng.integers(1, 7))
        read = sum(len(p) for p in cut([[9] * size for size in sizes], **source.model_dump(exclude_none=True)))
        costs, _ = kind.costs(np.array([[sizes.sum(), len(sizes), 0]]), source)
        assert read <= costs[0] <= (limit or costs[0])
        assert limit or len(sizes) > 4 or costs[0] <= sizes.sum() + len(sizes)


def test_only_flat_models_read_joined_paragraphs():
    joined = {name: Summarization.of(load_config(name).model).joined for name in ("ft", "ft-3", "ht", "pht", "vht")}
    assert joined == {"ft": True, "ft-3": True, "ht": False, "pht": False, "vht": False}


def test_compressed_input_still_ends_with_the_end():
    whole = replace(pack([cut([[10, 3, 11], [12], [13, 14]])]), titles=torch.tensor([2]))

    def restricted(*kept: int) -> list[list[int]]:
        source = whole.restrict([kept], joined=True)
        return [part.tolist() for part in source.ids.split(source.lengths.tolist())]

    assert restricted(0, 1) == [[10, 3, 11, 7], [12, 5]]
    assert restricted(1) == [[10, 3, 12, 5]]
    assert restricted(1, 2) == [[10, 3, 12, 7], [13, 14, 5]]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = tmp_path_factory.mktemp("flat") / "v.model"
    texts = [line for d in DOCUMENTS for line in (d if isinstance(d, str) else d["text"]).splitlines()]
    return Vocabulary.train(texts * 9, 120, path)


def test_raw_text_is_joined_and_cited_by_paragraph(tmp_path, vocabulary, monkeypatch):
    (tmp_path / "v.model").write_bytes(vocabulary.model)
    spec = FamilySpec(encoder="SS", decoder="F", positions="flat", vocabulary=len(vocabulary), **SIZES)
    write_random_run(tmp_path / "run", tmp_path / "v.model", spec, seed=3)
    summarizer = Summarizer.load(tmp_path / "run")
    seen: list[Source] = []
    encode = summarizer.model.encode
    monkeypatch.setattr(summarizer.model, "encode", lambda source: seen.append(source) or encode(source))
    cluster = {"title": "The mill", "documents": DOCUMENTS}
    summary, row = summarizer.summarize_many([cluster])[0], summarizer.prepare(cluster)
    paragraphs = [part.tolist() for part in np.split(row["ids"], row["paragraph_offsets"][1:-1])]
    assert seen[0].ids.tolist() == published(paragraphs, 10**6)
    assert seen[0].lengths.tolist() == [len(paragraph) + 1 for paragraph in paragraphs]
    assert len(summary.attention) == len(paragraphs) == 5 and sum(summary.attention) == pytest.approx(1, abs=1e-5)


def test_training_reads_the_same_as_decoding(tmp_path, monkeypatch):
    data = write_dataset(tmp_path / "data", {"train": 30, "valid": 6})
    model = {"encoder": "S", "decoder": "F", "positions": "flat", **SIZES}
    run = trained(data, tmp_path / "run", 2, model, source={"max_tokens": 14})
    kind, source = Summarization.of(run.config.model), run.config.source
    rows = list(read_rows(str(data), "valid", np.arange(6), kind.columns).values())
    ids = kind.collate(kind.pack(rows, source)).source.ids.tolist()
    assert ids == [token for row in rows for token in published(_paragraphs(row), 13)]
    assert {PARAGRAPH_END, EOS} <= set(ids)
    summarizer = Summarizer.load(run.path)
    read = Dataset.open(data).read("valid")
    seen: list[Source] = []
    encode = summarizer.model.encode
    monkeypatch.setattr(summarizer.model, "encode", lambda source: seen.append(source) or encode(source))
    for row in read:
        summarizer.summarize_rows([row])
        assert seen[-1].ids.tolist() == published(_paragraphs(row), 13)


def _paragraphs(row: dict) -> list[list[int]]:
    return [part.tolist() for part in np.split(row["ids"], row["paragraph_offsets"][1:-1])]


def test_without_ranking_the_first_tokens_of_the_documents_are_read(vocabulary):
    """FT (600 tokens, no ranking) of HT's Table 2."""
    cluster = {"title": "The inn of the valley", "documents": DOCUMENTS}
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, min_words=1)
    ranked, plain = (
        prepare_example(cluster, recipe.model_copy(update={"ranker": ranker}), vocabulary)
        for ranker in ("tfidf", "none")
    )
    lines = [line for d in DOCUMENTS for line in (d if isinstance(d, str) else d["text"]).splitlines() if line]
    assert plain["text"] == lines and ranked["text"] != lines
    source = load_config("ft", ["source.max_tokens=60"]).source
    found, _ = cut_source(plain, source, joined=True)
    title = [*vocabulary.encode(cluster["title"]), 3]
    texts = [title + vocabulary.encode(lines[0]), *map(vocabulary.encode, lines[1:])]
    assert found.tolist() == published(texts, 59) and len(found) == 60
