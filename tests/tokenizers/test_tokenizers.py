"""Published tokenizers: their ids and marks are transformers' own, and texts in them are prepared, read and cited."""

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import sentencepiece
from transformers import AutoTokenizer

from helpers.published_tokenizers import FAMILIES, published, texts
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.data.recipe import Recipe
from raysum.data.rows import title_of
from raysum.decode.domain_shift import signals
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.models.batch import Source
from raysum.models.family.spec import FamilySpec
from raysum.models.systems.specs import HibertSpec, RankerSpec
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import Rejected, prepare_example
from raysum.runs.folder import Run
from raysum.stream.collators.summarization import Summarization, cut_source
from raysum.systems import kind
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.special_tokens import SpecialTokens
from raysum.tokenizers.tokenizer import Tokenizer
from raysum.train.fit import fit

BYTE_LEVEL = ("bart", "led", "primera")
SPECIAL = ("<s>", "</s>", "<pad>", "<mask>", "<unk>", "<mask_1>", "<unk_7>", "<extra_id_0>", "de_DE", "<doc-sep>")
CHARACTERS = [
    "abcdefgh XYZ 0123456789 .,:;!?'\"()-_/\\",
    "éüßøñçàêłżÖĞİ “”‘’…—–•§°€£",
    "的是不我一有大在人了中到資要以可這個你會好為上來學交也用能如時文沒說他看提那問生過下",
    "жизньРусскийтекстعربيةעבריתไทยहिन्दी한국어가각",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪\u200d\ufe0f\u0301\u0327\u1100\u1161\u11a8",
    "\t\n\r\x00\x07\x1b\x7f\x85\xa0\u2003\u2028\u3000\ufeff\u200b\ufffd",
    "ﬁ½²①ℌＡ￦ｶﾞ㎏",
]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Any:
    return cache(lambda name: published(tmp_path_factory.mktemp("published") / name, name))


@pytest.fixture(scope="module")
def tokenizer(folders, family) -> Tokenizer:
    return load_tokenizer(folders(family))


@pytest.fixture(scope="module")
def theirs(folders, family) -> Any:
    return AutoTokenizer.from_pretrained(folders(family))


def drawn_text(drawn: random.Random, known: list[str]) -> str:
    """Some words of real text and of strange ones, long ones and none among them."""
    parts = []
    for _ in range(drawn.randint(0, 12)):
        what = drawn.random()
        if what < 0.5:
            parts.append(drawn.choice(known))
        elif what < 0.55:
            parts.append(drawn.choice("aQ的é.") * drawn.randint(30, 300))
        else:
            parts.append("".join(drawn.choices(drawn.choice(CHARACTERS), k=drawn.randint(0, 9))))
    return drawn.choice((" ", " ", "", "  ", "\n")).join(parts)


def check_ids(tokenizer: Tokenizer, theirs: Any, number: int) -> None:
    drawn, known, marks = random.Random(0), " ".join(texts()).split(), tokenizer.marks
    special = {*theirs.all_special_ids} - {marks.unknown}
    for _ in range(number):
        text = drawn_text(drawn, known)
        own, whole = tokenizer.encode(text), theirs(text)["input_ids"]
        assert [*marks.prefix, *own, *marks.suffix] == whole, text
        said = theirs.decode(own, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(own) == said.strip(), text
        at = drawn.randint(0, len(text))
        hostile = tokenizer.encode(text[:at] + drawn.choice(SPECIAL) + text[at:])
        assert special.isdisjoint(hostile) and len(hostile) >= len(own) - 4


def test_ids_and_texts_are_those_of_transformers(tokenizer, theirs):
    check_ids(tokenizer, theirs, 600)


@pytest.mark.long
@pytest.mark.slow
def test_ids_and_texts_are_those_of_transformers_for_ten_thousand_texts(tokenizer, theirs):
    check_ids(tokenizer, theirs, 10_000)


def test_marks_are_those_of_the_family(tokenizer, theirs, family):
    marks, ids = tokenizer.marks, theirs.convert_tokens_to_ids
    s, end, pad = ids("<s>"), ids("</s>"), ids("<pad>")
    language, german = ids("en_XX"), ids("de_DE")
    expected = {  # start, prefix, suffix, target_prefix
        "bart": (end, (s,), (end,), (s,)),
        "led": (end, (s,), (end,), (s,)),
        "primera": (s, (s,), (end,), ()),
        "t5": (pad, (), (end,), ()),
        "pegasus": (pad, (), (end,), ()),
        "mbart": (german, (), (end, language), ()),
        "mbart50": (end, (language,), (end,), (german,)),
    }
    assert (marks.start, marks.prefix, marks.suffix, marks.target_prefix) == expected[family]
    assert (marks.end, marks.pad, marks.unknown) == (end, pad, ids("<unk>")) and marks.sentence_end is None
    named = theirs("Arno:")["input_ids"]
    colon = named[len(marks.prefix) + len(tokenizer.encode("Arno")) : len(named) - len(marks.suffix)]
    line = tokenizer.encode("\n") if family in BYTE_LEVEL else []
    assert [*marks.title_end] == colon + line and tokenizer.decode(
        [*tokenizer.encode("Arno"), *marks.title_end]
    ) == "Arno:"
    between = [ids("<doc-sep>")] if family == "primera" else line
    assert [*marks.paragraph_end] == between
    assert [*marks.joined_end] == [*(between if family == "primera" else []), *marks.suffix]
    assert len(tokenizer) == len(theirs) + (28 if family == "t5" else 0)  # T5 has more ids than pieces


def test_targets_are_what_transformers_trains_on(tokenizer, theirs, family):
    """Its labels moved by one, with the start that the model shifts in."""
    text = "The river opened. It was long."
    labels = theirs(text_target=text)["input_ids"]
    made = tokenizer.encode_summary("The river opened.\nIt was long.")
    # mBART's language, which ends the labels, is what they are moved by; PRIMERA's trainer moves none in.
    expected = {"mbart": [labels[-1], *labels[:-1]], "primera": labels}.get(family, [tokenizer.marks.start, *labels])
    assert made == expected
    assert tokenizer.decode(made) == tokenizer.decode(made[1:]) == text
    assert tokenizer.sentences(made) == ["The river opened.", "It was long."]


def test_the_stored_file_is_the_same_each_time_and_all_there_is(tokenizer, folders, family, tmp_path):
    again = load_tokenizer(folders(family))
    assert again.model == tokenizer.model and again.sha256 == tokenizer.sha256
    (tmp_path / "vocabulary.model").write_bytes(tokenizer.model)
    for place in (tmp_path / "vocabulary.model", tmp_path):
        read = load_tokenizer(place)
        assert (read.model, read.marks, len(read)) == (tokenizer.model, tokenizer.marks, len(tokenizer))
        assert read.encode("Über 1,820.") == tokenizer.encode("Über 1,820.")
    assert {*json.loads(tokenizer.model)} == {"marks", "vocabulary", "tokenizer"}


def test_joined_paragraphs_are_those_of_the_joined_text(tokenizer, family):
    drawn, known = random.Random(1), [text for text in texts() if text]
    between = {"primera": "<doc-sep>"}.get(family, "\n" if family in BYTE_LEVEL else " ")
    for _ in range(100):
        some = drawn.choices(known, k=drawn.randint(1, 4))
        ids = [id for text in some for id in (*tokenizer.marks.paragraph_end, *tokenizer.encode(text))]
        ids = ids[len(tokenizer.marks.paragraph_end) :]
        if family == "primera":  # where its mark stands in a text it is spelled
            assert [*tokenizer.decode(ids)] == [*"".join(some)]
        else:
            assert ids == tokenizer.encode(between.join(some))


def test_paragraphs_are_encoded_whole_and_cut_where_sentences_begin(tokenizer):
    sentences = ["The river opened in 1,436.", "It's “now”.", "大教堂于1436年完工。", "Zażółć gęślą.", "Über: no end"]
    alone = [tokenizer.decode(tokenizer.encode(one)) for one in sentences]
    for text in (" ".join(sentences), "  ".join(sentences)):
        (parts,) = tokenizer.encode_sentences([text], "none")
        assert [id for part in parts for id in part] == tokenizer.encode(text)
        assert [tokenizer.decode(part) for part in parts] == alone
    (lowered,) = tokenizer.encode_sentences([" ".join(sentences)], "lower")
    assert [id for part in lowered for id in part] == tokenizer.encode(" ".join(sentences).lower())
    hostile = ["\u1100\u1161\u11a8 \u1112\u1161\u11ab. Next one. \u1100\u1161.", "A</s>. B <pad> c. </s>", "\x00. Ab."]
    for text, parts in zip(hostile, tokenizer.encode_sentences(hostile, "none"), strict=True):
        assert [id for part in parts for id in part] == tokenizer.encode(text)
    assert tokenizer.encode_sentences(["", " "], "none") == [[], []]


def test_spellings_make_the_text(tokenizer):
    drawn, spelled, marks = random.Random(2), tokenizer.spellings(), tokenizer.marks
    assert len(spelled) == len(tokenizer)
    for _ in range(500):
        ids = [id for id in drawn.choices(range(len(tokenizer)), k=12) if id not in (marks.start, marks.end)]
        assert b"".join(spelled[id] for id in ids).decode(errors="replace").strip() == tokenizer.decode(ids)
    for text in ("Vu Tanpar won 1,820.", "  It's   done ", "Zażółć — «gęślą»"):
        ids = tokenizer.encode(text)
        assert b"".join(spelled[id] for id in ids).decode().split() == tokenizer.decode(ids).split()
        assert " ".join(tokenizer.normalized(text).split()) == " ".join(text.split())


def test_sentences_of_a_summary_are_spans_of_its_tokens(tokenizer):
    marks, sentences = tokenizer.marks, ["The town of Brücke was built.", "It's 37.5% done.", "An end"]
    ids = [*marks.target_prefix, *tokenizer.encode(" ".join(sentences)), marks.end, *tokenizer.encode("Not this.")]
    spans = tokenizer.token_spans(ids)
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == sentences
    assert spans[0][0] == len(marks.target_prefix) and ids[spans[-1][1]] == marks.end
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert tokenizer.token_spans([]) == tokenizer.token_spans([marks.end]) == []


def test_a_sentence_has_all_bytes_of_its_first_character(folders):
    tokenizer = load_tokenizer(folders("bart"))
    sentences = ["“It's done.”", "−5 is it.", "“An end”"]
    assert tokenizer.sentences(tokenizer.encode(" ".join(sentences))) == sentences


def test_counts_are_enough_for_a_paragraph_in_pieces(tokenizer):
    drawn, known = random.Random(3), " ".join(texts()).split()
    for _ in range(100):
        parts = [" ".join(drawn.choices(known, k=drawn.randint(1, 9))) for _ in range(3)]
        whole = len(tokenizer.encode(" ".join(parts)))
        assert whole <= sum(tokenizer.counts(parts)) <= whole + 9
        assert tokenizer.within(" ".join(parts), whole + 9) and not tokenizer.within(" ".join(parts), whole - 1)


def test_a_row_is_of_paragraphs_between_their_marks(tokenizer, theirs, family):
    documents = ["The river opened in 1,436. It was long.", "Merbor led the choir of Larner for many years."]
    recipe = Recipe(vocabulary_sha256=tokenizer.sha256, ranker="none", paragraph_tokens=200)
    row: Any = prepare_example({"title": "Arno", "documents": documents, "summary": "A river."}, recipe, tokenizer)
    assert title_of(row, tokenizer.marks).tolist() == tokenizer.encode("Arno")
    marks, limits = tokenizer.marks, SourceConfig(paragraph_tokens=300)
    ids, lengths = cut_source(row, limits, marks=marks)
    separate = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    between = "\n" if family in BYTE_LEVEL else " "
    named = f"Arno:{between}{documents[0]}"
    assert separate == [theirs(text)["input_ids"] for text in (named, documents[1])]
    joined, _ = cut_source(row, limits, joined=True, marks=marks)
    expected = theirs(between.join((named, documents[1])))["input_ids"]
    if family == "primera":  # as its trainer has it
        (mark,) = marks.paragraph_end
        first, second = (theirs(text)["input_ids"][1:-1] for text in (named, documents[1]))
        expected = [0, *first, mark, *second, mark, 2]
    assert joined.tolist() == expected
    figures = signals(row, tokenizer)
    assert figures["unknown"] == 0 and 1 < figures["letters"] < 8 and 0 < figures["starts"] <= 1
    with pytest.raises(Rejected, match="SentencePiece vocabulary"):
        prepare_example({"paragraph_ids": [[9]], "target_ids": []}, recipe, tokenizer)


# Limits


FRAMES = [
    SpecialTokens(),
    SpecialTokens(prefix=(1,), suffix=(2,), joined_end=(2,), paragraph_end=(3,)),
    SpecialTokens(prefix=(), suffix=(2, 3), joined_end=(2, 3), paragraph_end=()),
    SpecialTokens(prefix=(1,), suffix=(2,), joined_end=(4, 2), paragraph_end=(4, 5), title_end=(6, 7)),
]


@pytest.mark.parametrize("marks", FRAMES)
@pytest.mark.parametrize("joined", [False, True])
def test_limits_count_the_marks_and_costs_are_never_too_low(marks, joined):
    drawn = np.random.default_rng(0)
    reader = Summarization(joined, marks=marks)
    between = len(marks.paragraph_end)
    around = len(marks.prefix) + len(marks.joined_end if joined else marks.suffix)
    for _ in range(300):
        sizes = drawn.integers(0, 9, drawn.integers(1, 6))
        sizes[0] += 1
        title = int(drawn.integers(0, sizes[0] + 1))
        row: Any = {
            "ids": np.arange(100, 100 + sizes.sum()),
            "paragraph_offsets": np.cumsum([0, *sizes]),
            "title_tokens": title,
            "target_ids": np.array([4, 9, 5]),
        }
        limits = SourceConfig(
            max_paragraphs=int(drawn.integers(1, 7)),
            paragraph_tokens=int(drawn.integers(1, 12)),
            max_tokens=int(drawn.integers(1, 40)) if drawn.random() < 0.7 else None,
        )
        packed = reader.pack([row], limits)
        ids, lengths = packed["ids"], packed["lengths"]
        (cost,), _ = reader.costs(np.array([[sizes.sum(), len(sizes), 3]]), limits)
        assert len(ids) == lengths.sum() <= cost - 3 and (lengths > 0).all()
        assert len(ids) <= max(limits.max_tokens or 10**6, around + 1)
        text = [part[part >= 100] for part in np.split(ids, np.cumsum(lengths)[:-1])]
        if not joined:
            assert (lengths <= max(limits.paragraph_tokens, around + 1)).all()
            for part, own in zip(np.split(ids, np.cumsum(lengths)[:-1]), text, strict=True):
                assert part.tolist() == [*marks.prefix, *own, *marks.suffix] and len(own)
        else:
            assert ids.tolist()[: len(marks.prefix)] == [*marks.prefix]
            assert ids.tolist()[len(ids) - len(marks.joined_end) :] == [*marks.joined_end]
            assert len(ids) <= sum(map(len, text)) + around + between * len(text)
        (count,) = packed["titles"]
        room = lengths[0] - (0 if joined else len(marks.suffix))
        assert count == (min(len(marks.prefix) + title, room) if title else 0)
        assert (
            ids[len(marks.prefix) : count].tolist() == row["ids"][: max(count - len(marks.prefix), 0)].tolist()
            or joined
        )


@pytest.mark.parametrize("marks", FRAMES)
def test_what_is_left_out_leaves_the_marks(marks):
    """A source without some paragraphs is as if these had not been there, but for the title."""
    row: Any = {
        "ids": np.arange(100, 112),
        "paragraph_offsets": np.array([0, 5, 8, 12]),
        "title_tokens": 2,
        "target_ids": np.array([4, 9, 5]),
    }
    for joined in (False, True):
        reader = Summarization(joined, marks=marks)
        whole: Source = reader.collate(reader.pack([row], SourceConfig())).source
        for kept, ids, offsets in (
            ([0, 2], [*range(100, 105), *range(108, 112)], [0, 5, 9]),
            ([1], [100, 101, *range(105, 108)], [0, 5]),
            ([1, 2], [100, 101, *range(105, 112)], [0, 5, 9]),
            ([0, 1, 2], [*range(100, 112)], [0, 5, 8, 12]),
        ):
            found = whole.restrict([kept], marks, joined)
            alone = row | {"ids": np.array(ids), "paragraph_offsets": np.array(offsets)}
            expected = reader.collate(reader.pack([alone], SourceConfig())).source
            assert found.ids.tolist() == expected.ids.tolist() and found.lengths.tolist() == expected.lengths.tolist()
            assert found.titles.tolist() == expected.titles.tolist()


# Whole ways


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in (("train", 30), ("valid", 6)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(raw) + "\n" for raw in generate(split, count)))
    return [folder / "train.jsonl", folder / "valid.jsonl"]


@pytest.mark.parametrize(("family", "flat"), [("bart", False), ("bart", True), ("t5", False), ("mbart50", True)])
def test_from_a_published_folder_to_a_run_that_summarizes(family, flat, folders, corpus, tmp_path):
    data = prepare(corpus, tmp_path / "data", vocab=str(folders(family)), max_paragraphs=5, paragraph_tokens=40).dataset
    tokenizer = load_tokenizer(data.vocabulary_path)
    assert data.recipe.normalize == "none" and data.manifest["pieces"] == len(tokenizer)
    row = next(data.read("train"))
    assert tokenizer.decode(row["target_ids"].tolist()) == row["summary"].replace("\n", " ")
    starts = row["sentence_offsets"]
    first, second = (tokenizer.decode(row["ids"][a:b].tolist()) for a, b in [*pairwise(starts)][:2])
    assert first == f"{row['title']}:" and row["text"][0].startswith(second) and second.endswith(".")
    sizes = "width=32 ffn=32 heads=2 pooling_heads=2 tied_output=true " + (
        "encoder=SS decoder=FF positions=flat" if flat else "encoder=LL decoder=PP"
    )
    settings = "workers=0 threads=1 steps=4 batch_tokens=2000 micro_batches=1 validate_every=4"
    told = [f"data={data.path}", f"out={tmp_path / 'run'}", *(f"model.{size}" for size in sizes.split())]
    told += [*(f"train.{one}" for one in settings.split()), "optim.schedule=constant", "optim.lr=0.001"]
    told += ["optim.warmup_steps=0"]
    fit(load_config("pht", told))
    run = Run.open(tmp_path / "run")
    assert run.config.model.marks == tokenizer.marks and run.config.model.vocabulary == len(tokenizer)
    assert hash(kind(run.config.model)) == hash(kind(run.config.model))
    written = Summarizer.load(tmp_path / "run", max_length=12, num_beams=2).summarize("Arno", [row["text"][0]])
    assert not any(mark in written.summary for mark in SPECIAL)
    assert written.summary == " ".join(sentence.text for sentence in written.sentences)


def test_a_spec_takes_over_what_the_tokenizer_tells(folders):
    bart, own = load_tokenizer(folders("bart")), Vocabulary.train(texts(), 200)
    for spec in (FamilySpec(), HibertSpec(), RankerSpec()):
        made = spec.with_tokenizer(bart)
        assert (made.vocabulary, made.marks) == (len(bart), bart.marks)
        assert made.with_tokenizer(own).marks == SpecialTokens() and made.with_tokenizer(own).vocabulary == len(own)
        assert type(spec).model_validate(made.model_dump(mode="json")) == made
    assert FamilySpec.model_validate({"vocabulary": 99}).marks == SpecialTokens()  # a config of before


# What is asked of a folder


def edited(folder: Path, to: Path, file: str, **changes: Any) -> Path:
    to.mkdir()
    for one in folder.iterdir():
        (to / one.name).write_bytes(one.read_bytes())
    told = json.loads((to / file).read_text()) | changes
    (to / file).write_text(json.dumps({name: value for name, value in told.items() if value is not None}))
    return to


def test_a_model_may_have_more_ids_than_pieces_or_lack_the_last_mark(folders, tmp_path):
    bart = folders("bart")
    size = len(load_tokenizer(bart))
    more = load_tokenizer(edited(bart, tmp_path / "more", "config.json", vocab_size=size + 5))
    assert len(more) == len(more.spellings()) == len(more.shapes[0]) == size + 5
    assert more.decode([size + 3, *more.encode("Arno")]) == "Arno"
    # bart-large-cnn has no row for the last id of its tokenizer, <mask>.
    pieces = json.loads((bart / "tokenizer.json").read_text())
    pieces["model"]["vocab"] = {p: id for p, id in pieces["model"]["vocab"].items() if p != "<mask>"}
    ids = {"<mask>": size}
    pieces["model"]["vocab"] |= ids
    pieces["added_tokens"] = [one | {"id": ids.get(one["content"], one["id"])} for one in pieces["added_tokens"]]
    less = edited(bart, tmp_path / "less", "config.json", vocab_size=size)
    (less / "tokenizer.json").write_text(json.dumps(pieces))
    assert len(load_tokenizer(less)) == size and load_tokenizer(less).marks.mask < size
    with pytest.raises(UserError, match=rf"has {size} pieces, but config.json describes a model of 300"):
        load_tokenizer(edited(bart, tmp_path / "few", "config.json", vocab_size=300))


def test_generation_config_tells_first_and_a_language_is_chosen(folders, tmp_path):
    folder = edited(folders("bart"), tmp_path / "bart", "config.json", decoder_start_token_id=2)
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 0, "eos_token_id": [2, 0]}')
    marks = load_tokenizer(folder).marks
    assert (marks.start, marks.target_prefix, marks.end) == (0, (), 2)
    for family in ("mbart", "mbart50"):
        plain, french = load_tokenizer(folders(family)), load_tokenizer(folders(family), language="fr_XX")
        code = json.loads(french.model)["tokenizer"]
        (code,) = [one["id"] for one in code["added_tokens"] if one["content"] == "fr_XX"]
        around = [*french.marks.prefix, *french.marks.suffix, french.marks.start, *french.marks.target_prefix]
        assert around.count(code) == 2 and plain.sha256 != french.sha256
        with pytest.raises(UserError, match="has no language 'xx_YY'; its languages: .*de_DE"):
            load_tokenizer(folders(family), language="xx_YY")
    with pytest.raises(UserError, match="has no language 'de_DE'; its languages: none"):
        load_tokenizer(folders("t5"), language="de_DE")
    with pytest.raises(UserError, match="language 'de_DE' needs a published tokenizer"):
        prepare("x.jsonl", tmp_path / "data", language="de_DE")


def test_what_cannot_be_read_is_one_message(folders, tmp_path):
    with pytest.raises(UserError, match="has no id for the start of a target"):
        load_tokenizer(edited(folders("t5"), tmp_path / "t5", "config.json", decoder_start_token_id=None))
    with pytest.raises(UserError, match=r"does not define its special ids: give its folder"):
        load_tokenizer(folders("t5") / "tokenizer.json")
    with pytest.raises(UserError, match="has the decoder CTC; supported are"):
        decoder = {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True}
        load_tokenizer(edited(folders("t5"), tmp_path / "ctc", "tokenizer.json", decoder=decoder))
    with pytest.raises(UserError, match="is not a valid tokenizer.json.*pad"):
        told = {"marks": {"pad": -1}, "tokenizer": json.loads((folders("t5") / "tokenizer.json").read_text())}
        (tmp_path / "v.model").write_text(json.dumps(told))
        load_tokenizer(tmp_path / "v.model")
    with pytest.raises(UserError, match="has no language|language 'de_DE' needs a published folder"):
        load_tokenizer(tmp_path / "v.model", language="de_DE")


@pytest.fixture(scope="module", params=[False, True])
def spiece(request, tmp_path_factory) -> Path:
    """A folder with a spiece.model, with pieces for bytes or without."""
    folder = tmp_path_factory.mktemp("spiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()), model_prefix=str(folder / "spiece"), vocab_size=700, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>", byte_fallback=request.param, minloglevel=2,
    )  # fmt: skip
    return folder


TEN = [f"<extra_id_{number}>" for number in range(10)]


@pytest.mark.parametrize(
    ("kind", "told", "sentinels"),
    [
        ("t5", None, 100),
        ("mt5", None, 0),
        ("umt5", None, 300),
        ("umt5", {"extra_ids": 0, "additional_special_tokens": None}, 0),
        ("mt5", {"additional_special_tokens": TEN}, 10),
    ],
)
def test_a_folder_with_only_a_sentencepiece_file_reads_as_sentencepiece_does(spiece, tmp_path, kind, told, sentinels):
    folder = Path(copytree(spiece, tmp_path / "folder"))
    own = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": len(own) + 320, **ids}))
    if told is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"} | told))
    tokenizer = load_tokenizer(folder)
    for text in [*texts()[:50], "Ⅳ ☃ 🙂 ok", " a\tb\n c ", "ﬁ½²", "e\u0301clair ก็ zero"]:
        found = tokenizer.encode(text)
        assert found == own.encode(text), text
        if 2 not in found:
            assert tokenizer.decode(found) == own.decode(found).strip(), text
    marks = tokenizer.marks
    assert (marks.start, marks.pad, marks.end, marks.unknown, marks.suffix, marks.prefix) == (0, 0, 1, 2, (1,), ())
    assert marks.mask == (len(own) + sentinels - 1 if sentinels else 2)
    assert len(tokenizer) == len(own) + 320
    names = json.loads(tokenizer.model)["tokenizer"]["added_tokens"]
    assert sum("extra_id" in token["content"] for token in names) == sentinels


def test_a_folder_with_only_a_sentencepiece_file_is_converted(tmp_path, monkeypatch):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()), model_prefix=str(tmp_path / "spiece"), vocab_size=400, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "config.json").write_text('{"model_type": "t5", "decoder_start_token_id": 0, "pad_token_id": 0}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    tokenizer, own = load_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    for text in texts()[:50]:
        assert tokenizer.encode(text) == own.encode(text)
    assert (tokenizer.marks.pad, tokenizer.marks.end, tokenizer.marks.suffix) == (0, 1, (1,))
    (tmp_path / "spiece.model").write_text("nothing")
    with pytest.raises(UserError, match=r"has no tokenizer.json, and transformers cannot make it of spiece.model"):
        load_tokenizer(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        UserError, match=r"has spiece.model and no tokenizer.json, needs transformers, which is not installed"
    ):
        load_tokenizer(tmp_path)
