"""Vocabularies: special ids out of reach of user text, round trips, deterministic training and sampling."""

import gzip
import io
import json
import pickle
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import pytest
import sentencepiece

from helpers.processes import Command
from helpers.special_ids import BOS, EOS, PAD, PARAGRAPH_END, SENTENCE_END, TITLE_END
from raysum.errors import UserError
from raysum.prepare.sampling import TextSample
from raysum.text.cleaning import normalize
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.special_tokens import SPECIAL_PIECES

TEXT = "river mountain village opened Lisbon painter, (1923) engine of the and was designed by <T> /S>"
HOSTILE = ["</S>", "a <T> b <Q><P>", "<s> </s> <unk> <PAD>", "x</S>y", "＜/S＞ ＜Q＞", "<<S>>", "<T", "</S> " * 50]


def lines(count: int) -> list[str]:
    pick = random.Random(0)
    return [" ".join(pick.choices(TEXT.split(), k=12)) for _ in range(count)]


@pytest.fixture(scope="module")
def trained() -> Vocabulary:
    return Vocabulary.train(lines(300), 90)


@pytest.fixture(scope="module")
def published(shared) -> Vocabulary:
    return load_tokenizer(shared / "data/wikisum_vocab/spm9998_3.model")


def test_special_ids_are_those_of_the_published_pieces(published):
    processor = sentencepiece.SentencePieceProcessor(model_proto=published.model)
    pieces = {"<T>": TITLE_END, "<S>": BOS, "</S>": EOS, "<PAD>": PAD, "<P>": PARAGRAPH_END, "<Q>": SENTENCE_END}
    assert {piece: processor.piece_to_id(piece) for piece in pieces} == pieces


@pytest.mark.parametrize("text", HOSTILE)
def test_user_text_never_gives_special_ids(trained, published, text):
    for vocabulary in (trained, published):
        ids = vocabulary.encode(text)
        assert ids and not set(ids) & set(range(1, 9))


def test_special_spellings_come_back_from_the_published_vocabulary(published):
    assert published.encode("a </S> b") != published.encode("a b")
    assert published.decode(published.encode("one <P> two <q> three")) == "one <p> two <q> three"
    assert published.decode(published.encode("x＜/S＞y").copy()) == "x</s>y"


def test_decode_stops_at_eos_and_joins_sentences(trained):
    first, second = trained.encode("river opened"), trained.encode("the village")
    ids = [BOS, *first, SENTENCE_END, SENTENCE_END, *second, EOS, *first]
    assert trained.decode(ids) == "river opened the village"
    assert trained.sentences(ids) == ["river opened", "the village"]
    assert trained.decode([BOS, EOS]) == "" and trained.sentences([]) == []


def test_summary_has_marks_between_sentences(trained):
    ids = trained.encode_summary("The river opened. The village was designed.\nThe engine")
    assert ids[0] == BOS and ids[-1] == EOS and ids.count(SENTENCE_END) == 2
    assert ids[1:-1] == [
        *trained.encode("The river opened."),
        SENTENCE_END,
        *trained.encode("The village was designed."),
        SENTENCE_END,
        *trained.encode("The engine"),
    ]
    assert trained.encode_summary(" \n") == [BOS, EOS]
    assert trained.encode_summary("THE river", "lower") == trained.encode_summary("the river")


def test_training_is_deterministic_and_survives_pickling(trained, tmp_path):
    again = Vocabulary.train(lines(300), 90, tmp_path / "v.model")
    assert again.sha256 == trained.sha256 == load_tokenizer(tmp_path / "v.model").sha256
    assert pickle.loads(pickle.dumps(trained)).encode("the river") == trained.encode("the river")


def test_small_corpus_gives_fewer_pieces_with_ids_in_one_range():
    vocabulary = Vocabulary.train(["alpha beta gamma delta"] * 5, 5000)
    assert 9 < len(vocabulary) < 100
    ids = vocabulary.encode("alpha gamma")
    assert max(ids) < len(vocabulary) and vocabulary.decode(ids) == "alpha gamma"


def test_normalization_is_told_from_the_pieces(published, trained):
    assert published.suggested_normalization() == "lower-split"
    assert trained.suggested_normalization() == "none"
    assert Vocabulary.train((line.lower() for line in lines(300)), 80).suggested_normalization() == "lower"
    split = (normalize(line, "lower-split") for line in lines(300))
    assert Vocabulary.train(split, 80).suggested_normalization() == "lower-split"


YEARS = range(1200, 1500)


def test_a_number_has_the_same_pieces_before_a_sign_and_before_a_space():
    texts = [
        f"It opened in {year}. In {year} it (as in {year + 7}) was 1,{year % 1000:03}." for year in range(1200, 1500)
    ]
    vocabulary = Vocabulary.train(texts, 120)
    for year in ("1386", "1203"):
        (alone,), (before,) = ([vocabulary.encode(text)] for text in (f"in {year}", f"in {year}."))
        assert before[: len(alone)] == alone and vocabulary.decode(before) == f"in {year}."
    pieces = [vocabulary.decode([number]) for number in range(9, len(vocabulary))]
    assert not [piece for piece in pieces if re.search(r"\d[^\w ]|[^\w ]\d", piece)]


INTERRUPTED = """
import os, random, signal
from raysum.tokenizers.sentence_piece import Vocabulary

def texts():
    draw = random.Random(1)
    for number in range(100_000):
        if number == {number}:
            os.kill(os.getpid(), signal.SIGINT)
        yield " ".join("".join(draw.choices("abcdefghijklmno", k=9)) for _ in range(5))

Vocabulary.train(texts(), 20_000)
"""


@pytest.mark.parametrize("number", [1000, None])
def test_an_interrupt_while_a_vocabulary_trains_ends_all_its_processes(number):
    program = INTERRUPTED.format(number=number)
    command = Command("-c", program, python=True, stderr=subprocess.PIPE, text=True)
    if number is None:
        command.wait_until(lambda: len(command.living()) == 2)
        command.process.send_signal(signal.SIGINT)
    _, told = command.process.communicate(timeout=60)
    assert command.process.returncode == -signal.SIGINT and told.rstrip().endswith("KeyboardInterrupt")
    command.wait_until_none_lives()


def test_errors_of_the_user(tmp_path):
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        load_tokenizer(tmp_path / "none.model")
    (tmp_path / "text.model").write_text("no model")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "text.model")
    with pytest.raises(UserError, match="no text"):
        Vocabulary.train([], 100)
    with pytest.raises(UserError, match="more different characters"):
        Vocabulary.train(lines(50), 12)


def test_vocabulary_of_other_special_pieces_is_refused():
    buffer = io.BytesIO()
    options = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines(50)), model_writer=buffer, **options)
    with pytest.raises(UserError, match="ids 0 to 8 must be"):
        Vocabulary(buffer.getvalue())


def sample_texts(corpus, size: int) -> list[str]:
    sample = TextSample(size)
    for name, texts in corpus:
        sample.add(name, texts)
    return sample.lines()


def test_sample_is_bounded_and_does_not_depend_on_order():
    corpus = [(f"id{i}", [f"text {i} " + "x" * 90]) for i in range(400)]
    sample = sample_texts(iter(corpus), 10)
    assert sample == sample_texts(reversed(corpus), 10)
    assert 10000 <= sum(map(len, sample)) < 10200
    numbers = sorted(int(line.split()[1]) for line in sample)
    assert numbers[0] < 50 and numbers[-1] > 350  # spread over the corpus, not its beginning
    assert sorted(sample_texts(corpus[:3], 1000)) == sorted(text for _, (text,) in corpus[:3])


@pytest.mark.parametrize("cuts", [[0, 1], [7, 200, 201], [399], [100, 100, 300]])
def test_samples_of_parts_merge_to_the_sample_of_the_whole(cuts: list[int]):
    corpus = [(f"id{i}", [f"text {i} " + "x" * (i * 37 % 200)]) for i in range(400)]
    merged = TextSample(10)
    for start, stop in pairwise([0, *cuts, 400]):
        part = TextSample(10)
        for name, texts in corpus[start:stop]:
            part.add(name, texts)
        merged.update(part)
    assert merged.lines() == sample_texts(corpus, 10)


def drawn_texts(count: int) -> Iterator[str]:
    """Words of few letters, and of any characters, with odd ones among them."""
    draw = random.Random(0)
    odd = "\u0301\u0308\u200b\u200d\u00a0\u3000\u00a8\u1fc1\u2581\u00ad\x1c\t\n\u65e5\u3002\u0130\u03a3\U0001f600.-"
    for _ in range(count):
        pick = [*"   abcde", *draw.choices(odd, k=6), *(chr(draw.randrange(32, 0xD7FF)) for _ in range(3))]
        yield "".join(draw.choices(pick, k=draw.randrange(60)))


def test_texts_encoded_word_by_word_are_those_encoded_whole(trained, published):
    known = 0
    for vocabulary in (trained, published):
        for text in drawn_texts(3000):
            whole = vocabulary._encode(text)
            assert vocabulary.encode(text) == whole
            if within := vocabulary.within(text, 9):
                assert len(whole) <= 9
            known += within
    assert known > 100


def test_a_unigram_model_gives_the_pieces_of_the_whole_text_where_two_are_equally_good(shared, published):
    """Sums are rounded: in 12 of 60,000 paragraphs of papers a word had other pieces than it has alone."""
    with gzip.open(shared / "data/scisummnet/valid.jsonl.gz", "rt") as rows:
        documents = [document["text"].lower() for row in rows for document in json.loads(row)["documents"]]
    texts = [line for text in documents for line in text.split("\n")]
    assert published.encode_all(texts) == [published._encode(text) for text in texts]
    assert sum(ids is None for ids in map(published._word_cache.ids, texts)) < len(texts) / 2


def test_a_vocabulary_with_pieces_over_spaces_encodes_whole_texts():
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(300)),
        model_writer=buffer,
        vocab_size=120,
        hard_vocab_limit=False,
        model_type="bpe",
        split_by_whitespace=False,
        pad_id=-1,
        bos_id=1,
        eos_id=2,
        control_symbols=list(SPECIAL_PIECES[3:]),
        minloglevel=2,
    )
    vocabulary = Vocabulary(buffer.getvalue())
    text = " ".join(lines(3))
    assert vocabulary._word_cache.ids(text) is None and not vocabulary.within("a", 9)
    assert vocabulary.encode(text) == vocabulary._encode(text)
