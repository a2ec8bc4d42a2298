"""The paragraph ranker equals its equations, ignores padding, and learns recall."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from rouge_score import rouge_scorer

import raysum
from helpers import references
from helpers.factbook_data import write_factbook
from helpers.small_models import EXAMPLES, build_seeded, pack, shaken
from helpers.special_ids import TITLE_END
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.models.systems.paragraph_scorers import RankingBatch, Titles
from raysum.models.systems.specs import RankerSpec
from raysum.runs.restore import restore_ranker
from raysum.stream.collators.ranking import Ranking
from raysum.systems import count_parameters
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.fit import fit

ADAM = ["optim.method=adam", "optim.lr=0.01", "optim.warmup_steps=0"]  # for a few steps


def ranking_batch(chosen: Sequence[int]) -> RankingBatch:
    titles, recall = [[9, 11], [20, 21, 12], [23]], [0.9, 0.1, 0.0, 0.4, 0.8, 0.2]
    first = [0, 3, 4]
    kept = [recall[first[n] : first[n] + len(EXAMPLES[n])] for n in chosen]
    flat = [token for n in chosen for token in titles[n]]
    lengths = torch.tensor([len(titles[n]) for n in chosen])
    return RankingBatch(
        Titles(torch.tensor(flat), lengths), pack([EXAMPLES[n] for n in chosen]), torch.tensor(sum(kept, []))
    )


def test_ranker_equals_the_plain_reference_and_ignores_padding():
    spec = RankerSpec(vocabulary=40, width=12, hidden=10)
    model = shaken(build_seeded(spec)).eval()
    assert sum(value.numel() for value in model.parameters()) == count_parameters(spec)
    batch, weights = ranking_batch([0, 1, 2]), dict(model.named_parameters())
    with torch.no_grad():
        found = model(batch.titles, batch.source)
        alone = [model(one.titles, one.source) for one in (ranking_batch([n]) for n in range(3))]
        expected = [
            references.ranker(weights, title.tolist(), example)
            for title, example in zip(batch.titles.ids.split(batch.titles.lengths.tolist()), EXAMPLES, strict=True)
        ]
    torch.testing.assert_close(found.sigmoid(), torch.cat(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-6, rtol=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"train": 48, "valid": 12})


def test_a_batch_holds_titles_paragraphs_and_their_recall(data):
    kind, source = Ranking(), SourceConfig(max_paragraphs=4, paragraph_tokens=20)
    rows = list(data.read("train", kind.columns))[:5]
    arrays = kind.pack(rows, source)
    batch = kind.collate(arrays)
    scorer = rouge_scorer.RougeScorer(["rouge2"], use_stemmer=True)
    expected = [scorer.score(row["summary"], text)["rouge2"].recall for row in rows for text in row["text"][:4]]
    assert batch.recall.tolist() == np.array(expected, np.float32).tolist() and max(expected) > 0.1
    paragraphs = len(rows[0]["text"][:4])
    russian = rows[0] | {"summary": "Старый мост 1357", "text": ["Это старый мост"] + ["1357"] * (paragraphs - 1)}
    found = kind.pack([russian], source)["recall"]  # in letters of which rouge-score reads none
    assert found.tolist() == [0.5] + [0] * (paragraphs - 1)
    costs, weights = kind.costs(data.lengths("train")[:5], source)
    assert kind.tokens(arrays) == (len(batch.source.ids) + len(batch.titles.ids), weights.sum())
    assert costs.sum() >= len(batch.source.ids) and weights.tolist() == batch.source.counts.tolist()
    vocabulary = load_tokenizer(data.vocabulary_path)
    raw = list(data.read("train", ["title"]))[:5]
    for title, row in zip(batch.titles.ids.split(batch.titles.lengths.tolist()), raw, strict=True):
        assert title[-1] == TITLE_END and vocabulary.decode(title[:-1].tolist()) == row["title"]
    assert TITLE_END not in batch.source.ids
    assert kind.costs(np.array([[30, 2, 0]]), source)[1] == 0  # no summary, nothing to learn


@pytest.mark.parametrize(
    ("title", "first"), [([9, 10, TITLE_END], [TITLE_END]), ([9, 10, TITLE_END], [12, 13]), ([], [9, 10])]
)
def test_a_title_alone_and_none_have_their_mark(title, first):
    ids = [*title, *(first if first != [TITLE_END] else []), 11]
    offsets = np.array([0, len(ids) - 1, len(ids)])
    row = {"ids": np.array(ids), "title_tokens": len(title), "paragraph_offsets": offsets, "text": [], "summary": ""}
    arrays = Ranking().pack([row], SourceConfig())
    assert arrays["title"].tolist() == (title or [TITLE_END])
    assert np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])[0].tolist() == first
    assert arrays["counts"].tolist() == [2] and arrays["ids"][-1] == 11


def test_a_ranker_is_trained_and_found_by_its_run(data, tmp_path):
    sizes = ["model.width=16", "model.hidden=16", "model.dropout=0", *ADAM, "source.max_tokens=30"]
    settings = ["steps=30", "workers=0", "micro_batches=1", "batch_tokens=2000", "validate_every=10", "save_every=30"]
    folders = [f"data={data.path}", f"out={tmp_path / 'ranker'}"]
    run = fit(load_config("ranker", [*folders, *sizes, *(f"train.{setting}" for setting in settings)]))
    losses = run.validations()
    assert list(losses) == [10, 20, 30] and losses[30] < losses[10]
    ranker = restore_ranker(str(run.path), data.vocabulary_hash, torch.device("cpu"))
    kind = Ranking()
    batch = kind.collate(kind.pack(list(data.read("valid")), run.config.source))
    found = torch.nn.functional.binary_cross_entropy_with_logits(ranker(batch.titles, batch.source), batch.recall)
    assert found.item() == pytest.approx(losses[30], rel=1e-5)
    _check_it_takes_sentences(run, data)


def _check_it_takes_sentences(run, data):
    table = raysum.evaluate(run.path, data.path, scorers=["rouge"], split="valid", limit=4)
    assert [*table.systems] == ["ranker", "lead", "lexrank", "mmr"]
    loaded = raysum.load(str(run.path))
    (cluster,) = generate("test", 1)
    found = loaded.summarize(cluster["title"], cluster["documents"], sentences=2)
    row = loaded.system.row(cluster)
    scores = loaded.system.scorer.scores(row)
    best = sorted(np.argsort(-scores, kind="stable")[:2])
    assert [part.text for part in found.sentences] == [row["text"][number] for number in best]
    for number in (0, len(scores) - 1):  # alone as together
        alone = loaded.system.scorer.scores(row | {"text": [row["text"][number]]})
        np.testing.assert_allclose(alone, scores[[number]], atol=1e-5)


def test_an_attention_predictor_is_not_trained_on_a_dataset():
    with pytest.raises(UserError, match="raysum train alignment"):
        fit(load_config("alignment", ["data=somewhere", "out=elsewhere"]))
