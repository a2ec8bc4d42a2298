"""Extraction: what is taken, where it is cited, in several languages, from Python and by the command line."""

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

import raysum
from helpers.small_runs import TEXTS
from raysum.cli.app import main
from raysum.config.decoding import ExtractConfig
from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, passage_row, take
from raysum.extract.systems import Lead, LexRank, Mmr, SourceTexts, Taken
from raysum.prepare import ranking
from raysum.prepare.cluster import read_cluster
from raysum.text.cleaning import paragraph_spans
from raysum.text.tfidf import words

# Texts whose sentences are in braces.
LANGUAGES = {
    "de": """Die Spree

{Die Spree ist ein Fluss im Osten Deutschlands.} {Sie entspringt im Lausitzer Bergland
und mündet in Berlin in die Havel.} {Am 3. Oktober 1990 wurde Berlin, d.h. die Stadt
an der Spree, wieder Hauptstadt.} {Im 19. Jahrhundert wurde der Fluss z.B. für die
Schifffahrt ausgebaut.}

{Dr. Müller maß ihre Länge: Die Spree ist rund 400 Kilometer lang.}
""",
    "ru": """{Волга — река в Европейской части России.} {Она впадает в Каспийское море.}
{В 1958 г. была построена Волжская ГЭС.} {На её берегах стоят города, т.е. Казань, Самара и др. города.} Она длинна!
""",
    "zh": """{佛罗伦萨位于阿诺河畔，是托斯卡纳的首府。}{大教堂于1436年完工！}你去过那里吗？
{罗马自1871年起是意大利的首都。}
""",
    "ar": "{تقع مدينة فلورنسا على نهر أرنو في إيطاليا.} هل زرت هذه المدينة من قبل؟ {إنها عاصمة إقليم توسكانا!}\n",
    "en": """# Florence

{Florence lies on the river Arno.} {It is, e.g. by F. Brunelleschi's dome, known in the U.S. Midwest.}

```
print("Florence is the capital of Tuscany. It lies in the north.")
```

| Florence | Arno is its river. |

* {St. Paul is a city on the Mississippi.}
1. {First item of a list about the Arno.}
""",
}
TEXT_OF = {name: re.sub("[{}]", "", text) for name, text in LANGUAGES.items()}


def quotes(summary) -> list[str]:
    return [sentence.citations[0].quote for sentence in summary.sentences]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("system", ["lexrank", "lead", "mmr"])
def test_sentences_of_a_text_are_cited_to_the_character(language, system):
    text, sentences = TEXT_OF[language], re.findall("{(.*?)}", LANGUAGES[language], re.DOTALL)
    summary = raysum.load(system, redundancy=1).summarize("", [{"source": "a.txt", "text": text}], words=1000)
    assert quotes(summary) == sentences
    for sentence in summary.sentences:
        (citation,) = sentence.citations
        assert text[citation.start : citation.end] == citation.quote
        assert sentence.text == " ".join(citation.quote.split()) == summary.summary[sentence.start : sentence.end]
        paragraphs = [text[a:b] for a, b in paragraph_spans(text, "blank-lines")]
        assert citation.quote.splitlines()[0] in paragraphs[citation.paragraph]
        assert (citation.source, citation.document, citation.weight, sentence.support) == ("a.txt", 0, 1.0, 1.0)
    assert summary.support == 100 and ("\n" not in summary.summary)


@pytest.mark.parametrize("system", ["lexrank", "lead", "mmr"])
@pytest.mark.parametrize("most", [8, 20, 33])
def test_whole_sentences_have_at_most_the_requested_words(system, most):
    summary = raysum.load(system).summarize("Florence", TEXTS, words=most)
    assert 0 < len(summary.summary.split()) <= most
    assert all(quote in " ".join(TEXTS) for quote in quotes(summary))
    places = [(s.citations[0].document, s.citations[0].start) for s in summary.sentences]
    assert places == sorted(places)
    wider = raysum.load(system, words=most + 12).summarize("Florence", TEXTS)
    assert len(wider.sentences) > len(summary.sentences)


def test_a_summary_is_never_empty_and_says_by_how_much_it_is_too_long():
    lengths = [30, 12, 11, 11, 13]
    documents = [" ".join([f"Word{number}", *["and"] * (length - 2), "end."]) for number, length in enumerate(lengths)]
    lead = raysum.load("lead", redundancy=1)
    for most, number, length in [(11, 2, 11), (10, 1, 12), (9, 2, 11), (5, 2, 11), (1, 2, 11)]:
        summary = lead.summarize("", documents, words=most)
        assert summary.summary == documents[number] and len(summary.summary.split()) == length
        told = [] if length <= most else [f"no sentence has {most} words or fewer: this one has {length}"]
        assert summary.warnings == told
    both = lead.summarize("", documents, words=5, sentences=2)
    assert both.summary == documents[2] and lead.summarize("", documents, sentences=1).warnings == []


def test_lead_takes_the_first_sentence_of_each_document_then_the_second():
    cited = [s.citations[0] for s in raysum.load("lead").summarize(documents=TEXTS, words=38).sentences]
    assert [(one.document, one.start > 0) for one in cited] == [(0, False), (0, True), (1, False), (2, False)]


def test_repeated_sentences_are_skipped_by_default():
    said = "Florence lies on the river Arno in Tuscany."
    documents = [f"{said} Rome has seven hills and the Tiber.", f"{said} Venice was built upon the water."]
    extractor = raysum.load("lexrank")
    assert quotes(extractor.summarize("", documents)).count(said) == 1
    assert quotes(extractor.summarize("", documents, redundancy=1)).count(said) == 2
    near = documents[:1] + ["Florence lies on the Arno in Tuscany."]
    assert len(quotes(extractor.summarize("", near))) == 2 < len(quotes(extractor.summarize("", near, redundancy=1)))


def test_mmr_takes_central_and_new_texts():
    texts = ["red fox river", "red fox river", "red fox", "blue owl tree", "red"]
    order = Mmr().order(source := SourceTexts(texts), taken := Taken(source))
    taken.numbers.append(first := next(order))
    vectors = TfidfVectorizer(token_pattern=r"\w+").fit_transform(texts).toarray()
    centroid = vectors.sum(0) / np.linalg.norm(vectors.sum(0))
    assert first == int(np.argmax(vectors @ centroid))
    gain = 0.7 * vectors @ centroid - 0.3 * vectors @ vectors[first]
    gain[first] = -1
    assert next(order) == int(np.argmax(gain))
    assert sorted(Mmr().order(source, Taken(source))) == [0, 1, 2, 3, 4]


def test_oracle_needs_a_reference_and_takes_its_sentences():
    cluster = {"documents": TEXTS, "summary": "Rome lies on the river Tiber."}
    oracle = raysum.load("oracle", words=8)
    assert [summary.summary for summary in oracle.summarize_many([cluster])] == [cluster["summary"]]
    with pytest.raises(UserError, match="'Rome'.* oracle chooses by a reference"):
        oracle.summarize("Rome", TEXTS)


def test_lexrank_prefers_the_beginning_and_no_short_turns():
    text = "The river is high and wide. The bridge is long and old. The river is wide."
    assert raysum.load("lexrank", words=7).summarize("", [text]).summary == "The river is high and wide."
    said = ["Ann: The river is high.", "Ben: The river is high, and the rain from the hills flooded the old bridge."]
    row = passage_row(read_cluster({"documents": ["\n".join([*said, "Cid: The river rose."])]}))
    assert LexRank().relevance(SourceTexts.of(row, readable=True)).argmax() == 1


@pytest.mark.parametrize("jump", [0.15, 0.0])
def test_lexrank_solves_the_equations_of_the_lexrank_package(jump, monkeypatch):
    """Its idf-modified cosine, Markov matrix and power method, written plainly, with our smoothed idf; the package has
    no jumps (eq. 5 of Erkan and Radev, 2004, has)."""
    sentences = [f"The {sentence}" for text in TEXTS for sentence in text.split(". ")] * 2
    bags = [words(sentence) for sentence in sentences]
    idf = {word: np.log((1 + len(bags)) / (1 + sum(word in b for b in bags))) + 1 for bag in bags for word in bag}

    def similarity(x: list[str], y: list[str]) -> float:
        shared = sum(x.count(word) * y.count(word) * idf[word] ** 2 for word in {*x} & {*y})
        lengths = [sum((bag.count(word) * idf[word]) ** 2 for word in {*bag}) for bag in (x, y)]
        return shared / np.sqrt(np.prod(lengths))

    matrix = np.array([[similarity(x, y) for y in bags] for x in bags])
    markov = matrix / matrix.sum(axis=1, keepdims=True)
    scores = np.ones(len(bags)) / len(bags)
    for _ in range(1000):
        scores = jump / len(bags) + (1 - jump) * markov.T @ scores
    monkeypatch.setattr(ranking, "_TELEPORT", jump)
    assert ranking.lexrank(sentences) == pytest.approx(scores, abs=1e-7)
    order = LexRank().order(source := SourceTexts(sentences), Taken(source))
    assert (np.diff(scores[order]) < 1e-7).all() and np.ptp(scores) > 0.01


def test_a_text_without_sentences_is_taken_by_lines():
    spoken = "so we went to the river\n\nit was late and nobody was there\n"
    assert quotes(raysum.load("lead").summarize("", [spoken])) == spoken.split("\n")[:3:2]
    with pytest.raises(UserError, match="no sentence in the documents"):
        raysum.load("lead").summarize("", ["--- !!! ...\n\n* * *"])


def test_an_open_fence_hides_nothing():
    sentence = "Florence lies on the river Arno."
    assert quotes(raysum.load("lead").summarize("", [f"```\n{sentence}"])) == [sentence]


def test_a_given_paragraph_is_not_split():
    cluster = {"paragraphs": ["Florence lies on\nthe river Arno.\nIt is the capital of Tuscany.", TEXTS[2]]}
    (summary,) = raysum.load("lead").summarize_many([cluster])
    cited = [sentence.citations[0] for sentence in summary.sentences]
    assert [(one.document, one.paragraph) for one in cited] == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert quotes(summary)[0] == "Florence lies on\nthe river Arno."


@pytest.mark.parametrize(
    "settings", [{"words": 0}, {"words": 10**6}, {"redundancy": 2}, {"beta": 1}, {"dtype": "int8"}]
)
def test_wrong_settings_are_named(settings):
    (name,) = settings
    with pytest.raises(UserError, match=name):
        raysum.load("lexrank", **settings)
    with pytest.raises(UserError, match=name):
        raysum.load("lexrank").summarize("", TEXTS, **settings)


def test_a_folder_of_that_name_is_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lead").mkdir()
    with pytest.raises(UserError, match="lead .*run folder"):
        raysum.load("lead")
    assert isinstance(raysum.load("lexrank"), Extractor)


@pytest.mark.parametrize("system", ["lexrank", "lead", "mmr"])
def test_the_time_of_a_huge_text_grows_with_its_length(system):
    rng, seconds = np.random.default_rng(0), list[float]()
    names = np.array([f"w{i}" for i in range(30_000)])
    lines = [f"The {' '.join(names[rng.integers(30_000, size=16)])}." for _ in range(10_000)]  # 1.1 MB
    for count in (100, 2_500, 10_000):  # the first loads modules
        began = time.process_time()
        summary = raysum.load(system).summarize("", ["\n".join(lines[:count])])
        seconds.append(time.process_time() - began)
        assert len(summary.sentences) == 5
    assert seconds[2] < 8 * seconds[1]  # 16, if each sentence were compared with each


@pytest.mark.parametrize("system", ["lexrank", "lead", "mmr", "oracle"])
def test_a_sentence_that_occurs_many_times_takes_no_longer(system):
    said = "Florence lies on the river Arno."
    began = time.process_time()
    (summary,) = raysum.load(system).summarize_many([{"documents": [f"{said}\n" * 20_000], "summary": said}])
    assert quotes(summary) == [said]
    assert time.process_time() - began < 8  # mmr took 27 s of 100,000 where each was weighed anew


def test_a_full_summary_ends_the_search():
    texts = [f"w{number} " * 9 for number in range(5000)]
    tried = []

    class Watched(Lead):
        def order(self, source, taken):
            for number in super().order(source, taken):
                tried.append(number)
                yield number

    assert take(Watched(), SourceTexts(texts), ExtractConfig(words=20)) == [0, 1] and len(tried) < 1500


# The command line


def run(*arguments: str, given: str | bytes = b"") -> subprocess.CompletedProcess[bytes]:
    given = given.encode() if isinstance(given, str) else given
    return subprocess.run([sys.executable, "-m", "raysum", *arguments], input=given, capture_output=True)


def test_text_files_are_one_cluster_and_so_is_standard_input(tmp_path):
    files = [str(tmp_path / f"{language}.txt") for language in LANGUAGES]
    for file, text in zip(files, TEXT_OF.values(), strict=True):
        Path(file).write_text(text, encoding="utf-8")
    done = run("summarize", "lexrank", *files, "--words", "120", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {s["citations"][0]["source"] for s in summary["sentences"]} == {Path(file).name for file in files}
    for sentence in summary["sentences"]:
        (citation,) = sentence["citations"]
        text = Path(files[citation["document"]]).read_text(encoding="utf-8")
        assert text[citation["start"] : citation["end"]] == citation["quote"]
    done = run("summarize", "lead", "-", "words=14", given=TEXT_OF["zh"])
    assert done.returncode == 0 and "大教堂于1436年完工！" in done.stdout.decode()


def test_extraction_imports_nothing_heavy(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT_OF["en"])
    code = (
        "import sys; sys.argv = ['raysum', 'summarize', 'lexrank', 'a.txt']\n"
        "from raysum.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'ray', 'deepspeed', 'pandas', 'pyarrow', 'scipy', 'sklearn', 'fastapi', 'sentencepiece')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Florence lies on the river Arno." in done.stdout and done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no sentence in the documents"),
        (b" \n\n", "no sentence in the documents"),
        (b"--- !!!", "no sentence in the documents"),
        (b"\0" * 100, "is binary; save its text as .txt"),
        (b"\xff\xfea", "begins as UTF-16, but is invalid at byte 2"),
        (b"\n" * ((64 << 20) + 1), "longer than 64 MiB"),
    ],
)
@pytest.mark.parametrize("way", ["file", "-"])
def test_unusable_input_is_one_message_and_exit_2(tmp_path, content, words, way, monkeypatch, capsys):
    (tmp_path / "file").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr(sys, "argv", ["raysum", "summarize", "lexrank", way, "--words", "5"])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == ""
    assert words in told.err and len(told.err.splitlines()) == 1


def test_lead3_is_the_first_three_sentences_by_default():
    documents = ["One is here today. Two is here today. ", "Three is here now. Four is here now. Five is here now."]
    three, four = (raysum.load("lead3", **changes).summarize("", documents) for changes in ({}, {"sentences": 4}))
    assert [part.text.split()[0] for part in four.sentences] == ["One", "Two", "Three", "Four"]
    assert three.sentences == four.sentences[:3]
    assert [part.citations[0].document for part in four.sentences] == [0, 0, 1, 1]
