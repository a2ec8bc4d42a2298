"""Grounded decoding: whatever model, search and vocabulary, a summary says no name that its sources do not."""

import io
import random

import pytest
import sentencepiece
import torch
from small_models import DRY, build_seeded, shaken
from small_runs import TEXTS

from raysum import systems
from raysum.config.sections import DecodeConfig, SourceConfig
from raysum.data.recipe import Recipe
from raysum.data.vocabulary import Vocabulary
from raysum.decode.grounding.cluster import Cluster
from raysum.decode.grounding.contexts import BEGIN, INSIDE, OUT
from raysum.decode.grounding.guide import Grounding
from raysum.decode.grounding.pieces import Pieces
from raysum.decode.searching import Searcher
from raysum.decode.summarizer import Summarizer
from raysum.metrics.names import Sources, is_number, runs, unsupported
from raysum.models.special_ids import BOS, EOS, SENTENCE_END, SPECIAL_PIECES, UNK
from raysum.prepare.pipeline import prepare_example

DOCUMENTS = [
    "Florence lies on the river Arno. In 1436 Vu Tanpar finished the dome of 37,000 tonnes; O'Neil-Smith paid $1.5.",
    "The Hague is far from Florence. An iPhone rang, says the U.S. Army; mRNA-1273 was new. Sheep of Mr. Ra Sol graze.",
    "“Quoted words” of Anglo-Saxon kings (the 2nd and 3rd) came by the A12/B7 road. ÉLODIE NAÏVE met Łódź in 12:30.",
]
WORDS = " ".join(DOCUMENTS + TEXTS).split()


def vocabulary_of(size: int, **options) -> Vocabulary:
    """Of English sources and much that they do not say; ``options`` are those of SentencePiece's trainer."""
    drawn = random.Random(size)
    names = ["".join(drawn.sample("aeioukrstnlmv", 5)).title() for _ in range(size)]
    lines = DOCUMENTS + TEXTS + [f"{a} and {b} of {drawn.random():.4f}." for a, b in zip(names, names[1:], strict=False)]
    if not options:
        return Vocabulary.train(lines, size)
    buffer = io.BytesIO()
    marks = list(SPECIAL_PIECES[3:])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=buffer, vocab_size=size, hard_vocab_limit=False, pad_id=-1,
        control_symbols=marks, minloglevel=2, **options,
    )  # fmt: skip
    return Vocabulary(buffer.getvalue())


VOCABULARIES = {
    "100": lambda: vocabulary_of(100),
    "1000": lambda: vocabulary_of(1000),
    "8000": lambda: vocabulary_of(8000),
    "unigram": lambda: vocabulary_of(500, model_type="unigram"),
    "bytes": lambda: vocabulary_of(
        600, model_type="bpe", byte_fallback=True, character_coverage=0.97, split_by_unicode_script=False
    ),
}
MODELS = {
    "pht": {"system": "family", "encoder": "LL", "decoder": "PP"},
    "flat": {"system": "family", "encoder": "SS", "decoder": "F"},
    "tdmca": {"system": "tdmca"},
    "txl": {"system": "txl"},
}


def told(text: str, sources: list[str], mode: str) -> list[str]:
    """What ``text`` says that the sources do not."""
    known = Sources(sources)
    if mode == "numbers":
        return [text[a:b] for a, b in runs(text, is_number) if not known.has(text[a:b])]
    return [text[a:b] for a, b in unsupported(text, known)]


def draw(drawn: random.Random, texts: list[str], vocabulary: Vocabulary, mode: str) -> tuple[list[int], Cluster]:
    """Pieces drawn among those that the automaton allows, as a model without sense would."""
    pieces = Pieces(vocabulary, mode)
    cluster = Cluster(texts, pieces, Cluster([], pieces))
    edges: dict[int, dict[int, int]] = {}
    for source, piece, target in cluster.edges.tolist():
        edges.setdefault(source, {})[piece] = target
    state, ids = BEGIN, []
    while len(ids) < 60 or cluster.context[state] == INSIDE:
        context = cluster.context[state]
        own, begun = edges.get(state, {}), edges.get(context, {})
        free = [i for i in range(len(vocabulary)) if pieces.allowed[context, i] and i not in (BOS, EOS)]
        choice = [pool for pool in (free, list(own), list(begun)) if pool]
        piece = drawn.choice(drawn.choice(choice))
        ids.append(piece)
        state = own.get(piece, begun.get(piece, int(pieces.follow[context, piece])))
    return ids, cluster


@pytest.mark.parametrize("mode", ["numbers", "names", "all"])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_way_through_the_automaton_says_what_the_sources_say(name, mode):
    vocabulary, drawn = VOCABULARIES[name](), random.Random(1)
    sources = [vocabulary.normalized(text) for text in ("The Hague 1436", *DOCUMENTS)]
    for _ in range(8):
        ids, _ = draw(drawn, sources, vocabulary, mode)
        text = vocabulary.decode(ids)
        assert not told(text, sources, mode), text
