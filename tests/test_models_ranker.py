"""The paragraph ranker equals its equations, ignores padding, and learns recall."""

from collections.abc import Sequence

import pytest
import references
import torch
import torch.nn.functional as F
from small_models import EXAMPLES, build_seeded, shaken

from raysum.config import load_config
from raysum.errors import UserError
from raysum.models.batch import Source
from raysum.models.parameters import count_parameters
from raysum.models.ranker import RankingBatch, Titles
from raysum.models.specs import RankerSpec
from raysum.train.fit import train
from raysum.train.objectives import objective_of


def ranking_batch(chosen: Sequence[int]) -> RankingBatch:
    titles, recall = [[9, 11], [20, 21, 12], [23]], [0.9, 0.1, 0.0, 0.4, 0.8, 0.2]
    first = [0, 3, 4]
    kept = [recall[first[n] : first[n] + len(EXAMPLES[n])] for n in chosen]
    flat = [token for n in chosen for token in titles[n]]
    lengths = torch.tensor([len(titles[n]) for n in chosen])
    return RankingBatch(
        Titles(torch.tensor(flat), lengths), Source.pack([EXAMPLES[n] for n in chosen]), torch.tensor(sum(kept, []))
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


def test_ranker_learns_recall():
    model, batch = build_seeded(RankerSpec(vocabulary=40, width=12, hidden=10, dropout=0.0)), ranking_batch([0, 1, 2])
    objective = objective_of(model, 0.0)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    for _ in range(80):
        loss = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    scores = model(batch.titles, batch.source).sigmoid()
    assert (scores - batch.recall).abs().max() < 0.05
    entropy = F.binary_cross_entropy(batch.recall, batch.recall, reduction="sum")
    assert loss.item() == pytest.approx(entropy.item(), abs=0.05)


def test_ranker_is_not_trained_on_summaries():
    with pytest.raises(UserError, match="writes no summaries"):
        train(load_config("ranker", ["data=somewhere", "out=elsewhere"]))
