"""The passages that a summary cites, how much of it they support, and how both are shown."""

import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from helpers.factbook_data import write_factbook, write_run
from helpers.special_ids import EOS, SENTENCE_END
from raysum import systems
from raysum.decode.attention import attention_of
from raysum.decode.citations import SourceIndex, annotated, nearest_sentences
from raysum.decode.page import fragment, shortened, summaries_page
from raysum.decode.summarizer import Summarizer
from raysum.decode.summary import Summary
from raysum.evaluate.evaluation import evaluate, results_folder
from raysum.evaluate.scorers import means, score_table, scorers_of
from raysum.evaluate.systems import Extracted
from raysum.examples.factbook.scorer import Factbook
from raysum.metrics import citations
from raysum.metrics.citations import TextIndex, said, supported_share
from raysum.runtime.storage import read_lines

GAZETTE = "\n\n  The mill of Arden was built in 1820.\r\n\r\nA fire broke out.  Nobody died. Vu Tanpar saw it. \n"
DOCUMENTS = ['Sheep graze near Arden.\nThe inn is old <b>&</b> "small".', {"source": "gazette", "text": GAZETTE}]
ALL = [np.array([1.0])]  # the attention of a sentence to the only paragraph


def row_of(paragraphs: list[str], title: str = "Arden") -> dict:
    count = len(paragraphs)
    where = {"document": np.zeros(count, int), "paragraph": np.arange(count), "char_start": 100 * np.arange(count)}
    return {"id": "x", "title": title, "text": paragraphs, "source": ["gazette"], **where}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"valid": 30, "test": 40})


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    return write_run(tmp_path_factory.mktemp("runs") / "pht", data)


@pytest.mark.parametrize(
    ("text", "names", "others"),
    [
        ("The mill of Arden was rebuilt by Vu Tanpar in 1,820 days. Sheep graze.",
         "Arden|Vu Tanpar|1,820|Sheep", "mill|rebuilt|days|graze"),
        ("Sheep graze", "", "Sheep|graze"),  # the capital is that of the beginning
        ("1820 began", "1820", "began"),
        ("It was the", "", ""),
        ("", "", ""),
    ],
)  # fmt: skip
def test_the_parts_of_a_text_are_names_and_words_that_have_a_meaning(text, names, others):
    parts = said(text)
    assert "|".join(part.text for part in parts if part.name) == names
    assert "|".join(part.text for part in parts if not part.name) == others


def test_the_share_counts_a_name_as_three_words():
    passage = TextIndex(["The MILL of Arden, near Vu Tanpar", "rebuilt in 1821"])
    shares = {"The mill of Arden was rebuilt.": 1, "The mill of Belfort was rebuilt.": 2 / 5, "It was not.": None}
    shares |= {"Tanpar sold mills": (1 + 0 + 0) / 3, "The mill of Tan Tanpar": 1 / 4, "182": 0}
    assert {text: supported_share(said(text), [passage]) for text in shares} == pytest.approx(shares)


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("Arden has one mill.", "The mill of Arden is old."),
        ("The mill of Arden was built in 1820.", "The mill of Arden is old. It was built in 1820."),
        ("Eating sheep", "Sheep graze here."),
        ("Quite other words", ""),
    ],
)
def test_a_quote_is_the_shortest_run_of_sentences_that_contains_most(text, quote):
    paragraph = "Sheep graze here. The mill of Arden is old. It was built in 1820. Nobody came."
    span = nearest_sentences(SourceIndex(row_of([paragraph])).sentences(0), said(text))
    assert (paragraph[slice(*span)] if span else "") == quote


def test_offsets_are_those_of_the_given_document(run):
    summarizer = Summarizer.load(run.path, min_length=12, max_length=16)
    texts = [document if isinstance(document, str) else document["text"] for document in DOCUMENTS]
    names = set()
    for title in ("Arden", "The fire of 1820", "Vu Tanpar"):
        for mode in ("attention", "lexical", "both"):
            row = summarizer.prepare({"title": title, "documents": DOCUMENTS})
            for words in (["Vu Tanpar saw a fire."], ["The inn is old.", "Arden was built in 1820 by Vu Tanpa."]):
                weights = [np.full(len(row["text"]), 1 / len(row["text"]))] * len(words)
                summary = annotated(row, words, weights, mode)
                assert summary.summary == " ".join(words)
                for note in summary.notes:
                    assert texts[note.document][note.start : note.end] == note.quote != ""
                    names.add((note.document, note.source))
                for span in summary.unsupported:
                    assert summary.summary[span.start : span.end] == span.text == "Vu Tanpa"
                assert bool(summary.unsupported) == (len(words) == 2) == bool(summary.sentences[-1].unsupported)
        written = summarizer.summarize(title, DOCUMENTS)
        for note in written.notes:
            assert texts[note.document][note.start : note.end] == note.quote
    assert names == {(0, "document 1"), (1, "gazette")}


@pytest.mark.parametrize(
    ("text", "attention", "cited"),
    [
        ("It burned in 1820.", [0.25] * 4, [1, 2]),  # its name is in two of the four, with equal attention
        ("It burned in 1820.", [0.5, 0.4, 0.05, 0.05], [1]),
        ("It burned in 1821.", [0.7, 0.1, 0.1, 0.1], [0]),  # no paragraph has a word of it: attention alone
        ("Arden burned in 1820.", [0.7, 0.1, 0.1, 0.1], [1, 2]),  # words of the title do not count
        ("It burned near Ude.", [0.7, 0.1, 0.1, 0.1], [3]),
    ],
)
def test_names_and_attention_together_choose_the_citations(text, attention, cited):
    fire = "In 1820 a fire broke out in Arden."
    row = row_of(["The mill of Arden is old.", fire, "Since 1820 it is dry.", "Fog came to Ude."])
    (sentence,) = annotated(row, [text], [np.array(attention)]).sentences
    assert [note.paragraph for note in sentence.citations] == cited
    weights = [note.weight for note in sentence.citations]
    assert sum(weights) == pytest.approx(1) and weights == sorted(weights, reverse=True)
    (sentence,) = annotated(row, [text], [np.array([0.7, 0.1, 0.1, 0.1])], "attention").sentences
    assert [note.paragraph for note in sentence.citations] == [0, 1, 2]


def test_nothing_cites_nothing():
    assert citations.combined([], [], [TextIndex(["a"])], "t").shape == (0, 1)


@pytest.mark.parametrize("mix", ["LP", "GF", "SF", "LV"])
def test_the_combination_cites_references_better_than_words_or_attention_alone(data, tmp_path, mix):
    """The models have learned nothing, and are forced through the references."""
    shape = {"encoder": mix[0], "decoder": mix[1], "positions": "flat" if mix == "SF" else "2d"}
    run = write_run(tmp_path / mix, data, **shape)
    summarizer, rows = Summarizer.load(run.path), list(data.read("test"))
    kind, model = systems.kind(summarizer.model.spec), summarizer.model
    source = kind.collate(kind.pack(rows, summarizer.source)).source
    ids = [row["target_ids"][1:].tolist() for row in rows]
    found = attention_of(model, model.encode(source), [[one] for one in ids])
    figures = {}
    for mode in ("attention", "lexical", "both"):
        summaries = []
        for row, one, (weights,) in zip(rows, ids, found, strict=True):
            marks = [-1, *(i for i, piece in enumerate(one) if piece in (SENTENCE_END, EOS))]
            spans = list(zip([mark + 1 for mark in marks], marks[1:], strict=False))
            texts = [summarizer.vocabulary.decode(one[a:b]) for a, b in spans]
            paid = [citations.overall(weights[a:b, : len(row["text"])]) for a, b in spans]
            summaries.append(annotated(row, texts, paid, mode))
        figures[mode] = means(score_table(rows, summaries, [Factbook()]))
    for measure in ("citation_precision", "citation_recall"):
        both, *others = (figures[mode][measure] for mode in ("both", "attention", "lexical"))
        assert both > 90 > max(others)


def test_support_is_by_the_cited_paragraphs_or_without_any_by_all_sources():
    row = row_of(["The mill of Arden is old.", "A fire broke out in 1820."])
    alone = annotated(row, ["The mill burned in 1820."], [np.array([1.0, 0.0])], "attention")
    assert alone.support == pytest.approx(100 * 1 / 5) and not alone.unsupported
    every = annotated(row, ["The mill burned in 1820.", "Ude is old.", "It was."])
    assert [part.support for part in every.sentences] == [pytest.approx(4 / 5), pytest.approx(1 / 2), None]
    assert every.support == pytest.approx(100 * 5 / 7) and [span.text for span in every.unsupported] == ["Ude"]
    assert annotated(row, ["It was."]).support is None
    (lead,) = Extracted.named("lead-paper").summarize([row | {"summary": "a b c d e"}], [row])
    assert lead.support == 100 and not lead.unsupported


def test_notes_are_numbered_once_each_and_printed_with_their_positions():
    long = "The mill of Arden " + "turns and " * 40 + "stops in 1820."
    row = row_of([long, "Vu Tanpar saw it.", "He came from Ude."], "Mills")
    equal = np.full(3, 1 / 3)
    texts = ["Vu Tanpar saw Arden.", "He was from Ude and Zor.", "Vu Tanpar saw it."]
    summary = annotated(row, texts, [equal] * 3, id="a")
    assert [note.paragraph for note in summary.notes] == [1, 0, 2]
    assert [summary.numbered(part) for part in summary.sentences] == [[1, 2], [3], [1]]
    lines = summary.model_copy(update={"warnings": ["unlike"]}).render().splitlines()
    notes = ["[1][2]", "[3]", "[1]"]
    assert lines[:4] == ["a", *(f"  {text} {note}" for text, note in zip(texts, notes, strict=True))]
    assert lines[4] == '    [1] gazette, "Vu Tanpar saw it." chars 100-117'
    assert lines[5].startswith('    [2] gazette, "The mill of Arden turns') and " ... " in lines[5]
    assert len(lines[5]) < 220
    assert lines[7].endswith("; in no source: Zor") and lines[8] == "    warning: unlike"
    assert summary.notes[1].quote == long and shortened("a\n b") == "a b"


class Checked(HTMLParser):
    """Fails if a tag is closed out of order; keeps the text, and classes and texts of marks."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.text, self.marks = [], set(), "", []
        self.feed(html)
        assert self.open in ([], ["html"])

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open += [] if tag == "meta" else [tag]
        self.marks += [(dict(attrs)["class"], "")] if tag == "mark" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += "" if "style" in self.open else data
        if "mark" in self.open:
            self.marks[-1] = (self.marks[-1][0], self.marks[-1][1] + data)


def test_a_page_marks_the_cited_passages_and_escapes_markup():
    evil = '<script>alert("1")</script> & </pre></style>'
    text = f"The mill of {evil} is in Arden. It was built in 1820."
    row = row_of([text], evil) | {"source": [f"gazette {evil}"], "char_start": np.array([2])}
    sentences = [f"The mill of {evil} Zor is in Arden.", "In 1820 it was built."]
    summary = annotated(row, sentences, ALL * 2, id=evil, warnings=[evil])
    cluster = {"title": evil, "documents": [{"source": f"gazette {evil}", "text": f"\n\n{text}"}, "Uncited."]}
    html = summaries_page([summary], [cluster])
    shown = Checked(html)
    assert "script" not in shown.tags and "link" not in shown.tags and not re.search(r"https?:|//|@import|url\(", html)
    for part in (f"\n\n{text[:10]}", "Uncited.", "in no source: Zor", f"gazette {evil}", *sentences[1:]):
        assert part in shown.text.replace("[1]", "").replace("[2]", ""), part
    quotes = [note.quote for note in summary.notes]
    assert shown.marks[: len(quotes)] == [(f"n{number}", quote) for number, quote in enumerate(quotes, 1)]
    assert '<span class="u">Zor</span>' in html and unescape(evil) in shown.text and "color-scheme: light dark" in html
    cell = fragment(summary)
    assert summary._repr_html_() == cell and "script" not in Checked(cell).tags
    name = re.search(r'id="(\w+)"', cell).group(1)
    assert f"#{name}:has(.s0:hover) .n1" in cell and f"#{name}:has(.s1:hover) .n{len(quotes)}" in cell


def test_passages_that_overlap_are_marked_by_both_notes():
    text = "Vu Tanpar came. He built in 1820. Fog lay on Ude."
    row = row_of([text], "Mills")
    one = annotated(row, ["Vu Tanpar built in 1820.", "In 1820 fog lay on Ude."], ALL * 2)
    marks = Checked(summaries_page([one], [{"title": "", "documents": [text]}])).marks
    assert [name for name, _ in marks] == ["n1", "n1 n2", "n2"]
    assert "".join(part for _, part in marks) == text and marks[1][1].strip() == "He built in 1820."


def test_the_command_line_writes_the_page(run, tmp_path):
    (tmp_path / "one.txt").write_bytes(GAZETTE.encode())
    command = [*(sys.executable, "-m", "raysum", "summarize", run.path, tmp_path / "one.txt"), "--title", "Arden"]
    done = subprocess.run([*command, "--json", "--html", tmp_path / "out.html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"the summaries and their sources are in {tmp_path / 'out.html'}" in done.stderr
    summary = Summary.model_validate(json.loads(done.stdout.splitlines()[-1]))
    for note in summary.notes:  # the file's line ends are two characters each
        assert GAZETTE[note.start : note.end] == note.quote and note.source == "one.txt"
    assert summary.notes and "Sources" in Checked((tmp_path / "out.html").read_text()).text
    failed = subprocess.run([*command, "--html", tmp_path / "none" / "o.html"], capture_output=True, text=True)
    assert failed.returncode == 2 and "choose another --html" in failed.stderr and "Traceback" not in failed.stderr
    assert not failed.stdout and "summarize:" not in failed.stderr  # before the summaries, which would be lost


def test_evaluation_counts_support_and_unsupported_summaries(run, data):
    result = evaluate(str(run.path), data.path, split="test", limit=6, swapped=True)
    lines = [*read_lines(results_folder(run, data, "test", limit=6) / "outputs.jsonl")]
    for name in ("pht", "swapped", "lead"):
        notes = [line["notes"][name] for line in lines]
        figures = result.systems[name]
        known = [one["support"] for one in notes if one["support"] is not None]
        assert figures["support"] == pytest.approx(np.mean(known)) if known else "support" not in figures
        assert figures["unsupported"] == sum(bool(one["unsupported"]) for one in notes)
        assert [" ".join(part["text"] for part in one["sentences"]) for one in notes] == [line[name] for line in lines]
    assert result.systems["lead"]["support"] == 100 and result.systems["lead"]["unsupported"] == 0
    assert lines[0]["notes"]["pht"]["sentences"][0]["citations"][0]["quote"]


def test_evaluation_reports_the_agreement_of_support_with_facts(data):
    rows = list(data.read("test"))[:4]
    texts = [row["summary"].replace("\n", " ") for row in rows]
    texts[1::2] = [re.sub(r"[A-Z]\w+", "Zor", text) for text in texts[1::2]]
    summaries = [annotated(row, [text]) for row, text in zip(rows, texts, strict=True)]
    figures = means(score_table(rows, summaries, scorers_of(None)))
    assert figures["support_facts"] > 0.9 and figures["unsupported"] == 2
    assert "support_facts" not in means(score_table(rows[:1], summaries[:1], scorers_of(None)))
