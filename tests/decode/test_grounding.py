"""Grounded decoding: with any model, search and vocabulary, a summary has only names that its sources have."""

import io
import random
import re

import pytest
import sentencepiece
import torch

from helpers.invented import invented, numbers
from helpers.published_tokenizers import tokenizer_of
from helpers.small_runs import TEXTS
from helpers.special_ids import UNK
from raysum import systems
from raysum.config.decoding import DecodeConfig
from raysum.data.recipe import Recipe
from raysum.decode.grounding import constraint
from raysum.decode.grounding.cluster import SourceAutomaton
from raysum.decode.grounding.pieces import BEGIN, INSIDE, Pieces
from raysum.decode.grounding.tables import TableConstraint
from raysum.decode.summarizer import Summarizer
from raysum.examples.factbook.corpus import generate
from raysum.text.names import Sources, is_number, runs, unsupported
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.special_tokens import SPECIAL_PIECES
from raysum.tokenizers.tokenizer import Tokenizer

DOCUMENTS = [
    "Florence lies on the river Arno. In 1436 Vu Tanpar finished the dome of 37,000 tonnes; O'Neil-Smith paid $1.5.",
    "The Hague is far from Florence. An iPhone rang, says the U.S. Army; mRNA-1273 was new. Sheep of Mr. Ra Sol graze.",
    "“Quoted words” of Anglo-Saxon kings (the 2nd and 3rd) came by the A12/B7 road. ÉLODIE NAÏVE met Łódź in 12:30.",
    "From −5% to 1.5bn and 37.5 (3/4 of US$5, $5-$10): 2.5 million, 10 km/h, 10km, 7 %, 2019–2021, 1 820, 19:56.",
]
WORDS = " ".join(DOCUMENTS + TEXTS).split()


def vocabulary_of(size: int, **options) -> Vocabulary:
    """Of English sources and much that they do not say; ``options`` are those of SentencePiece's trainer."""
    drawn = random.Random(size)
    names = ["".join(drawn.sample("aeioukrstnlmv", 5)).title() for _ in range(size)]
    lines = (
        DOCUMENTS + TEXTS + [f"{a} and {b} of {drawn.random():.4f}." for a, b in zip(names, names[1:], strict=False)]
    )
    if not options:
        return Vocabulary.train(lines, size)
    buffer = io.BytesIO()
    marks = list(SPECIAL_PIECES[3:])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=buffer, vocab_size=size, hard_vocab_limit=False, pad_id=-1,
        control_symbols=marks, minloglevel=2, **options,
    )  # fmt: skip
    return Vocabulary(buffer.getvalue())


BPE = {"model_type": "bpe", "character_coverage": 1.0}
WITH_BYTES = {"byte_fallback": True, "character_coverage": 0.98, "split_by_unicode_script": False}
VOCABULARIES = {
    "100": lambda: vocabulary_of(100),
    "1000": lambda: vocabulary_of(1000, **BPE),
    "8000": lambda: vocabulary_of(8000, **BPE),
    "unigram": lambda: vocabulary_of(500, model_type="unigram"),
    "bytes": lambda: vocabulary_of(700, **BPE | WITH_BYTES),
}
# Other pieces: of a byte-level tokenizer, and of one with a sign for spaces.
PUBLISHED = {"bart": lambda: tokenizer_of("bart"), "t5": lambda: tokenizer_of("t5")}
MODELS = {
    "pht": {"system": "family", "encoder": "LL", "decoder": "PP"},
    "flat": {"system": "family", "encoder": "SS", "decoder": "F"},
    "tdmca": {"system": "tdmca"},
    "txl": {"system": "txl"},
    "graphsum": {"system": "graphsum"},
}


def summarizer(model: str, vocabulary: Vocabulary, seed: int, **decode) -> Summarizer:
    """Of a small model with random weights, sure of what it writes, and a predictor that draws."""
    sizes = {"vocabulary": len(vocabulary), "width": 16, "ffn": 24, "heads": 2, "dropout": 0.0}
    made = systems.build(systems.spec_class(MODELS[model]["system"]).model_validate(MODELS[model] | sizes))
    torch.manual_seed(seed)
    for value in made.parameters():
        torch.nn.init.normal_(value, std=0.5)
    graph = "similarity" if model == "graphsum" else "none"
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, min_words=1, graph=graph)
    return Summarizer(made.eval(), vocabulary, recipe, DecodeConfig(**decode), "a test", predictor=predictor)


def use_tables(monkeypatch, vocabulary: Tokenizer) -> None:
    """Decode on the CPU with the tables of a GPU."""
    end, device = vocabulary.marks.end, torch.device("cpu")
    monkeypatch.setattr(constraint, "HostConstraint", lambda made, of: TableConstraint(made, of, end, device))


def predictor(paragraphs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return paragraphs[..., 0].masked_fill(~mask, -torch.inf).softmax(-1)


def clusters(drawn: random.Random, number: int) -> list[dict]:
    """Documents of shuffled words, so that names meet where none did."""
    found = []
    for _ in range(number):
        words = [" ".join(drawn.sample(WORDS, drawn.randint(8, len(WORDS)))) for _ in range(drawn.randint(1, 3))]
        found.append({"title": " ".join(drawn.sample(WORDS, 3)), "documents": [*words, drawn.choice(DOCUMENTS)]})
    return found


def told(text: str, sources: list[str], mode: str) -> list[str]:
    """What ``text`` says that the sources do not."""
    known = Sources(sources)
    if mode == "numbers":
        return [name for run in runs(text, is_number) if not known.has(name := text[run[0].start : run[-1].end])]
    return [text[a:b] for a, b in unsupported(text, known)]


class Drawer:
    """Draws pieces among those that the automaton allows, as a model without sense would."""

    def __init__(self, vocabulary: Tokenizer, mode: str, seed: object):
        self.vocabulary, self.drawn = vocabulary, random.Random(f"{mode} {seed}")
        self.pieces, ends = Pieces(vocabulary, mode), {vocabulary.marks.start, vocabulary.marks.end}
        self.base = SourceAutomaton([], self.pieces)
        self.free = [[i for i, bias in enumerate(row) if not bias and i not in ends] for row in self.pieces.bias]
        self.digits = {i for i, piece in enumerate(vocabulary.spellings()) if re.search(rb"\d", piece)}

    def text(self, sources: list[str]) -> str:
        cluster, state, ids = SourceAutomaton(sources, self.pieces, self.base), (BEGIN, ()), []
        while len(ids) < 60 or state[0] == INSIDE:
            begun = cluster.begun(state[0])
            pools = (self.free[state[0]], [*cluster.names(state)], [*begun], [*self.digits & begun.keys()])
            ids.append(self.drawn.choice(self.drawn.choice([*filter(None, pools)])))
            state = cluster.next(state, ids[-1])
        return self.vocabulary.decode(ids)


def dated(number: int) -> list[dict]:
    """Clusters of the factbook with their years written 1,956 or 19.56, at least one year in each."""
    found, year = [], r"\b(\d)(\d)(\d\d)\b"
    for raw in generate("test", 4 * number):
        form = (r"\1,\2\3", r"\1\2.\3")[len(found) % 2]
        texts = [document["text"] for document in raw["documents"]]
        if len(found) < number and re.search(year, " ".join(texts)):
            found.append({"title": raw["title"], "documents": [re.sub(year, form, text) for text in texts]})
    assert len(found) == number
    return found


@pytest.mark.parametrize("mode", ["numbers", "names", "all"])
@pytest.mark.parametrize("name", VOCABULARIES | PUBLISHED)
def test_every_path_through_the_automaton_has_names_of_the_sources(name, mode):
    vocabulary = (VOCABULARIES | PUBLISHED)[name]()
    drawer = Drawer(vocabulary, mode, 1)
    sources = [vocabulary.normalized(text) for text in ("The Hague 1436", *DOCUMENTS)]
    assert drawer.pieces.has_bytes == (name in ("bytes", "bart"))
    for _ in range(8):
        text = drawer.text(sources)
        assert not told(text, sources, mode), text
        assert not invented(text, sources, mode != "numbers"), text


def test_a_name_after_a_sign_of_several_bytes_stays_whole():
    """Pieces such as ’Tan begin names, and no name ends within one."""
    lines, buffer = DOCUMENTS + ["’Tan –Tan ’Flo –Flo ’Hag –Hag ’La –La ’So –So"] * 60, io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=buffer, vocab_size=300, model_type="bpe", pad_id=-1,
        control_symbols=list(SPECIAL_PIECES[3:]), minloglevel=2, split_by_unicode_script=False, add_dummy_prefix=False,
    )  # fmt: skip
    vocabulary = Vocabulary(buffer.getvalue())
    assert any("’Ta".encode() in spelling for spelling in vocabulary.spellings())
    drawer, sources = Drawer(vocabulary, "names", 2), [vocabulary.normalized(text) for text in DOCUMENTS]
    for _ in range(60):
        text = drawer.text(sources)
        assert not told(text, sources, "names"), text


@pytest.mark.parametrize("name", VOCABULARIES | PUBLISHED)
def test_no_path_through_the_automaton_splits_a_number(name):
    vocabulary, written = (VOCABULARIES | PUBLISHED)[name](), 0
    for mode in ("numbers", "names", "all"):
        drawer = Drawer(vocabulary, mode, name)
        for cluster in dated(60):
            sources = [vocabulary.normalized(text) for text in (cluster["title"], *cluster["documents"])]
            text = drawer.text(sources)
            assert not invented(text, sources, mode != "numbers"), text
            written += len(numbers(text))
    assert written > 100


MODES = ["numbers", "names", "names", "all"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        pytest.param(model, vocabulary, marks=[] if m == v else pytest.mark.long)  # CI has each of both once
        for m, model in enumerate(MODELS)
        for v, vocabulary in enumerate(VOCABULARIES)
    ],
)
def test_no_summary_has_names_that_its_sources_lack(model, vocabulary):
    drawn, pieces = random.Random(f"{model} {vocabulary}"), VOCABULARIES[vocabulary]()
    for seed in range(6):
        beams, most, mode = drawn.randint(1, 8), drawn.randint(1, 40), drawn.choice(MODES)
        decode = {
            "grounded": mode, "num_beams": beams, "n_best": beams, "max_length": most,
            "min_length": drawn.randint(0, most), "no_repeat_ngram_size": drawn.choice([0, 1, 2, 3]),
            "no_repeat_last": drawn.choice([0, 2]), "alignment_when": drawn.choice(["step", "final"]),
            "early_stopping": drawn.choice([None, True, False, "never"]),
            "forced_bos_token_id": drawn.choice([None, 1]), "forced_eos_token_id": drawn.choice([None, 5]),
        }  # fmt: skip
        writer = summarizer(model, pieces, seed, **decode)
        rows = [writer.prepare(cluster) for cluster in clusters(drawn, 3)]
        for written in writer.summarize_betas(rows, writer.settings, [0.0, 0.7, 3.0][: drawn.randint(1, 3)]):
            for row, summary in zip(rows, written, strict=True):
                sources = [pieces.normalized(text) for text in (row["title"], *row["text"])]
                for text in (summary.summary, *(other.summary for other in summary.alternatives)):
                    assert not told(text, sources, mode), (decode, text)
                    assert not invented(text, sources, mode != "numbers"), (decode, text)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tables_of_a_gpu_allow_what_the_host_allows(vocabulary, monkeypatch):
    pieces = VOCABULARIES[vocabulary]()
    held = 0
    for seed in range(9):
        drawn = random.Random(f"{seed} {vocabulary}")
        decode = {
            "grounded": MODES[seed % 3], "num_beams": drawn.randint(1, 5), "max_length": drawn.randint(2, 40),
            "alignment_when": drawn.choice(["step", "final"]), "forced_bos_token_id": drawn.choice([None, 1, 20]),
            "no_repeat_ngram_size": drawn.choice([0, 1, 3]), "title_prompt": drawn.random() < 0.2,
            "early_stopping": drawn.choice([None, False]),
        }  # fmt: skip
        writer = summarizer(drawn.choice(["pht", "flat"]), pieces, seed, **decode)
        rows = [writer.prepare(cluster) for cluster in clusters(drawn, 4)]
        betas = [0.0, 0.7][: drawn.randint(1, 2)]
        by_host = writer.summarize_betas(rows, writer.settings, betas)
        with monkeypatch.context() as patched:
            use_tables(patched, pieces)
            assert writer.summarize_betas(rows, writer.settings, betas) == by_host
        free = writer.summarize_rows(rows, writer.choose({"grounded": None}))
        held += sum(one.summary != other.summary for one, other in zip(free, by_host[0], strict=True))
    assert held > 9


def test_free_decoding_has_such_names():
    """Otherwise the test before shows nothing."""
    vocabulary = VOCABULARIES["1000"]()
    free = summarizer("pht", vocabulary, 0, max_length=30)
    found = free.summarize_many(clusters(random.Random(0), 8))
    assert sum(bool(unsupported(summary.summary, Sources(DOCUMENTS))) for summary in found) > 4


def test_searches_alone_together_and_of_several_betas_find_the_same():
    vocabulary, drawn = VOCABULARIES["1000"](), random.Random(3)
    settings = {"grounded": "names", "num_beams": 3, "n_best": 3, "max_length": 25, "alignment_when": "step"}
    writer = summarizer("pht", vocabulary, 1, **settings)
    rows = [writer.prepare(cluster) for cluster in clusters(drawn, 6)]
    together = writer.summarize_betas(rows, writer.settings, [0.0, 2.0])
    for number, beta in enumerate((0.0, 2.0)):
        for place, row in enumerate(rows):
            (alone,) = writer.summarize_rows([row], writer.choose({"beta": beta}))
            assert alone.summary == together[number][place].summary
            assert [a.summary for a in alone.alternatives] == [a.summary for a in together[number][place].alternatives]


def test_grounding_changes_nothing_if_it_masks_nothing():
    """A vocabulary without capitals and digits."""
    lines = [line.lower() for line in TEXTS]
    vocabulary = Vocabulary.train(["".join(c for c in line if not c.isdigit()) for line in lines], 100)
    for seed in range(4):
        writer = summarizer("pht", vocabulary, seed, num_beams=4, n_best=4, max_length=25)
        given = clusters(random.Random(seed), 3)
        rows = [writer.prepare(cluster) for cluster in given]
        free, held = (writer.summarize_rows(rows, writer.choose({"grounded": mode})) for mode in (None, "names"))
        assert free == held


def test_the_title_as_a_prompt_stays_whole_and_is_continued():
    vocabulary = VOCABULARIES["8000"]()
    for seed in range(4):
        writer = summarizer("pht", vocabulary, seed, grounded="names", title_prompt=True, max_length=25)
        summary = writer.summarize("Florence and Vu Tanpan 9", DOCUMENTS)
        assert summary.summary.startswith("Florence and Vu Tanpan 9")
        assert not unsupported(summary.summary, Sources(["Florence and Vu Tanpan 9", *DOCUMENTS]))


def test_a_name_cut_at_the_maximum_length_is_left_out_and_comes_after_whole_summaries():
    vocabulary = VOCABULARIES["100"]()
    for seed in range(6):
        writer = summarizer("pht", vocabulary, seed, grounded="names", num_beams=2, n_best=2, max_length=3)
        summary = writer.summarize("ÉLODIE", DOCUMENTS)
        assert len(summary.attention) and not unsupported(summary.summary, Sources(["ÉLODIE", *DOCUMENTS]))


def written(texts: list[str], text: str, mode: str) -> bool:
    """Whether ``text`` can be written if the sources are ``texts``, in the vocabulary's own segmentation."""
    vocabulary = VOCABULARIES["1000"]()
    pieces = Pieces(vocabulary, mode)
    cluster = SourceAutomaton(texts, pieces, SourceAutomaton([], pieces))
    state, ids = (BEGIN, ()), vocabulary.encode(text)
    assert UNK not in ids, text
    for piece in ids:
        if pieces.bias[state[0], piece] and piece not in cluster.names(state) | cluster.begun(state[0]):
            return False
        state = cluster.next(state, piece)
    return state[0] != INSIDE


HAGUE = ["The Hague", "Vu Tanpar paid 1,820 at O'Neil's mill in the U.S. Army; sheep graze. An iPhone of 37 B."]
ROSE = ["Vu Tanpar grew a rose in 1,956; -5% of mRNA-1273, $3.5 million or 10 km to 30 sheep: 1 820, 12."]


@pytest.mark.parametrize(
    ("sources", "mode", "allowed", "refused"),
    [
        (HAGUE, "names",
         "Vu Tanpar paid 1,820.|Tanpar paid O'Neil. There sheep graze.|Sheep graze in The Hague|37 of Vu, (37)"
         "|The Vu Tanpar|some iPhone in the U.S. of Hague|a Army. For Vu.",
         "Tan|Vu Vu|820.1|18|in Sheep|paid tanPar|Vu-Tanpar|Vu The|Mill 2|x37"),
        (["A Rose", *ROSE], "names",
         "Vu of 1,956.|in 1,956, 12|to -5%|a mRNA|mRNA-1273 to 30|(1 820)|10 km|$3.5 million. Rose|30 and 12|in 12-and",
         "956|1|1,95|-5|5%|5|1273|mRNA-30|$3.5|3.5 million|10|12 km|30 m|1 8|820|12,30|12:30|12.30|30-12|-12|$12|12%"
         "|12 %|Rose Tanpar|In 30 Tanpar|Vu−30"),
        (ROSE, "names", "Rose came.", "Rose Tanpar came."),
        (HAGUE, "numbers", "Vu Vu of 1,820", "in 1,8"),
        (HAGUE, "all", "sheep graze", "sheepgraze"),
    ],
)  # fmt: skip
def test_what_may_be_written(sources, mode, allowed, refused):
    for text in allowed.split("|"):
        assert written(sources, text, mode), text
    for text in refused.split("|"):
        assert not written(sources, text, mode), text


def test_a_number_that_the_vocabulary_cannot_spell_is_no_dead_end():
    sources = ["The Hague", "It cost 5¥ and 1−820 or 7 ₿ to Vu, 12¥ Tanpar and 37"]
    for name in ("100", "1000", "unigram"):
        vocabulary = VOCABULARIES[name]()
        assert UNK in vocabulary.encode("¥") and UNK in vocabulary.encode("₿")
        for mode in ("numbers", "names", "all"):
            drawer = Drawer(vocabulary, mode, 0)
            for _ in range(20):
                found = numbers(drawer.text(sources))
                assert found <= {"37", "1−820"}, found
