"""`prepare` from files to a dataset folder; the slow tests run it on Ray."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysum.data.dataset import REJECTED, Dataset
from raysum.data.inspection import Card
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.prepare.config import PrepareConfig
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import prepare_example
from raysum.prepare.sampling import find_boilerplate, train_vocabulary
from raysum.prepare.shards import write_shards
from raysum.sources.find import RawSource, find_sources
from raysum.sources.formats import Format
from raysum.sources.record import Record
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary

NAMES = ("Arno", "Duero", "Elbe", "Loire", "Neva", "Tagus", "Volga")


def clusters(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    """Small clusters, each with numbers of its own."""
    for number in range(start, start + count):
        name = NAMES[number % len(NAMES)]
        facts = f"The {name} has {number} bridges and rises in valley {number // 7}."
        other = f"Nobody has counted the {number} mills on the other rivers."
        yield {"id": f"r{number}", "title": name, "documents": [facts + "\n" + other], "summary": facts}


def write_lines(path: Path, rows: Iterator[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("vocabulary") / "small.model"
    Vocabulary.train((text for row in clusters(200) for text in row["documents"][0].splitlines()), 150, path)
    return str(path)


def left_in(folder: Path) -> set[str]:
    return {item.name for item in folder.iterdir()}


# Mistakes found before Ray starts


def test_mistakes_leave_nothing_behind(tmp_path):
    corpus = write_lines(tmp_path / "train.jsonl", clusters(3))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    for out, options, message in (
        ("out", {"sources": [str(tmp_path / "absent.jsonl")]}, "no such file"),
        ("out", {"vocab": str(tmp_path / "absent.model")}, "cannot read the vocabulary"),
        ("out", {"ranker": "bm25"}, "ranker"),
        ("out", {"max_paragraph": 3}, "max_paragraph"),
        ("out", {"split": "dev"}, "no split 'dev'"),
        ("out", {"pieces": 12}, "different characters"),
        ("taken", {}, "exists already"),
        ("train.jsonl", {}, "is a source; choose another --out"),
        ("train.jsonl", {"sources": str(tmp_path)}, "is a source; choose another --out"),
        (".", {}, "holds the source .*train.jsonl; choose another --out"),
        ("train.jsonl/out", {}, "cannot write"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(**{"sources": [corpus], "out": str(tmp_path / out), **options})
    assert left_in(tmp_path) == {"train.jsonl", "taken"}


# The job


def test_rows_keep_their_order_over_several_shards(tmp_path, vocabulary, capsys):
    rows = list(clusters(2500))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_lines(corpus / "train.2.jsonl", iter(rows[:2100]))
    write_lines(corpus / "train.10.jsonl", iter(rows[2100:2400]))
    (corpus / "valid.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows[2400:])).encode()))
    (tmp_path / ".data.unfinished").mkdir()  # what a killed prepare leaves
    (tmp_path / ".data.unfinished" / "junk.parquet").touch()

    report = prepare(corpus, tmp_path / "data", vocab=vocabulary, min_words=4).to_dict()

    assert report["words_kept"] == Dataset.open(tmp_path / "data").manifest["words_kept"]
    assert 0.4 < report["words_kept"] < 0.6  # the other half are clones of the summaries
    assert "% are in clones of the summary" in capsys.readouterr().err
    assert report["splits"] == {"train": 2400, "valid": 100} and report["rows_in"] == report["rows"] == 2500
    assert left_in(tmp_path) == {"corpus", "data"} and not list((tmp_path / "data").glob("junk*"))
    dataset = Dataset.open(tmp_path / "data")
    assert [shard["rows"] for shard in dataset.manifest["splits"]["train"]["shards"]] == [1024, 1024, 352]
    found = list(dataset.read("train"))
    assert [row["id"] for row in found] == [row["id"] for row in rows[:2400]]
    expected = prepare_example(rows[2050], dataset.recipe, load_tokenizer(dataset.vocabulary_path))
    for column, value in found[2050].items():
        same = np.array_equal(value, expected[column]) if isinstance(value, np.ndarray) else value == expected[column]
        assert same, column
    lengths = [(len(row["ids"]), len(row["document"]), len(row["target_ids"])) for row in found]
    assert dataset.lengths("train").tolist() == [list(row) for row in lengths]
    assert sum(rows for _, _, rows in dataset.row_groups("train")) == 2400
    assert dataset.vocabulary_path.read_bytes() == Path(vocabulary).read_bytes()

    again = prepare([corpus], tmp_path / "again", vocab=vocabulary, min_words=4).dataset
    assert again.fingerprint == dataset.fingerprint
    other = prepare(
        [corpus], tmp_path / "other", vocab=vocabulary, min_words=4, paragraph_tokens=9, long_paragraphs="cut"
    ).dataset
    assert other.fingerprint != dataset.fingerprint
    assert Card.of(str(other.path)).figures["splits"]["train"]["source_cut"] > 0.2


def test_of_few_clusters_as_many_are_held_out_as_are_asked_for(tmp_path, vocabulary):
    source = write_lines(tmp_path / "few.jsonl", clusters(9))
    named = write_lines(tmp_path / "test.jsonl", clusters(3, start=9))
    made = prepare([source, named], tmp_path / "data", vocab=vocabulary, valid=0.2, test=0.2)
    assert made.to_dict()["splits"] == {"train": 5, "valid": 2, "test": 5}


def test_evaluation_counts_the_best_of_several_references(tmp_path, vocabulary):
    rows = [row | {"summary": "Something else.", "summaries": [row["documents"][0]] * (n % 2)} for n, row in
            enumerate(clusters(20))]  # fmt: skip
    corpus = write_lines(tmp_path / "test.jsonl", iter(rows))
    dataset = prepare([corpus], tmp_path / "data", vocab=vocabulary, clone_recall=1.0, min_words=1).dataset
    assert dataset.reference_lengths("test").shape == (20, 2)
    assert np.count_nonzero(dataset.reference_lengths("test"), axis=1).tolist() == [1, 2] * 10
    result = evaluate("oracle", dataset.path, out=tmp_path / "table")
    assert "references up to 2, maximum F1" in result.protocol
    assert result.scores["rouge1"][::2].max() < result.scores["rouge1"][1::2].min()
    second = json.loads((tmp_path / "table" / "outputs.jsonl").read_text().splitlines()[1])
    assert second["other_references"] == rows[1]["summaries"] and second["reference"] == "Something else."


def test_bad_rows_are_set_aside_with_place_and_reason(tmp_path, vocabulary):
    bad = ["{no json", json.dumps({"title": "x"}), json.dumps({"documents": ["a b"], "split": "fold1"})]
    corpus = write_lines(tmp_path / "corpus.jsonl", iter([*clusters(40), *bad]))
    report = prepare([corpus], str(tmp_path / "data"), vocab=vocabulary, test=0.25).to_dict()
    assert report["rejected"] == {"not JSON": 1, "no documents": 1, "split is none of train, valid, test": 1}
    assert report["rows"] == 40 == sum(report["splits"].values()) and 0 < report["splits"]["test"] < 20
    rejected = [json.loads(line) for line in (tmp_path / "data" / REJECTED).read_text().splitlines()]
    by_place = {line["where"]: (line["reason"], line["row"]) for line in rejected}
    assert by_place[f"{corpus}:41"] == ("not JSON", "{no json")
    assert by_place[f"{corpus}:42"] == ("no documents", {"title": "x"})

    with pytest.raises(
        UserError, match=r"3 of 43 clusters are rejected, more than --max-rejected 0.05: .*corpus.jsonl:4"
    ):
        prepare([corpus], str(tmp_path / "none"), vocab=vocabulary, max_rejected=0.05)
    assert len((tmp_path / "none.rejected.jsonl").read_text().splitlines()) == 3
    only_bad = write_lines(tmp_path / "bad.jsonl", iter(bad))
    with pytest.raises(UserError, match="3 of 3 clusters are rejected, so nothing is left"):
        prepare([only_bad], str(tmp_path / "none"), vocab=vocabulary, max_rejected=1.0)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(Path(corpus).read_bytes())[:-20])
    with pytest.raises(UserError, match="cut.jsonl.gz cannot be read to its end"):
        prepare([corpus, str(cut)], str(tmp_path / "none"), vocab=vocabulary)
    assert left_in(tmp_path) == {"corpus.jsonl", "bad.jsonl", "cut.jsonl.gz", "data", "none.rejected.jsonl"}


def test_kept_fields_that_no_cluster_has_are_named(tmp_path, vocabulary, capsys):
    rows = [{"id": str(n), "documents": ["It rained."], "summary": "Rain.", "url": "u" * (n == 3)} for n in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare([tmp_path / "a.jsonl"], tmp_path / "data", vocab=vocabulary, keep=["url", "urk", "linc"])
    message = capsys.readouterr().err
    assert "--keep urk,linc" in message and "url" not in message


@pytest.mark.slow
@pytest.mark.timeout(90)  # Ray would wait for the task without end: it cannot send an exception with such a text
def test_a_failed_task_ends_the_job_with_its_reason(ray_session, tmp_path, vocabulary):
    def reader(path: Path) -> Iterator[Record]:
        yield Record("x:1", {"documents": ["text"]})
        raise ValueError("\udcff is no text")

    config, loaded = PrepareConfig(out="data"), load_tokenizer(vocabulary)
    writer = DatasetWriter(tmp_path, "summarization", config.recipe(loaded.sha256, "none"), loaded)
    source = RawSource(tmp_path / "x", None, Format("x", "", "", reader), 1)
    with pytest.raises(RuntimeError, match="(?s)a task failed.*ValueError: .* is no text"):
        write_shards([source], writer, config, tmp_path / "kept", on_ray=True)
    with pytest.raises(ValueError, match="is no text"):
        write_shards([source], writer, config, tmp_path / "kept", on_ray=False)


@pytest.mark.slow
def test_the_dataset_is_the_same_in_this_process_and_on_ray(ray_session, tmp_path, vocabulary):
    rows = [json.dumps(row) for row in clusters(2500)]
    rows[9::100] = ["{broken"] * 25
    write_lines(tmp_path / "a.jsonl", iter(rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(rows[:300]).encode()))
    config, loaded = PrepareConfig(out="data", valid=0.2), load_tokenizer(vocabulary)
    sources = find_sources([tmp_path])
    for name in ("here", "ray"):
        (tmp_path / name).mkdir()
        writer = DatasetWriter(tmp_path / name, "summarization", config.recipe(loaded.sha256, "none"), loaded)
        write_shards(sources, writer, config, tmp_path / "kept", on_ray=name == "ray")
    here, ray = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("here", "ray"))
    assert here == ray and len(here) == 1 + 1 + 1 + 2 + 4  # manifest, vocabulary, rejected; lengths, shards
    assert Dataset.open(tmp_path / "ray").manifest["rejected"] == {"not JSON": 28}


def test_vocabulary_and_boilerplate_are_the_same_on_ray(ray_session, tmp_path, capsys):
    banner = "We use cookies to improve what you read on this site."
    for part in range(3):
        rows = [row | {"id": f"{part}-{n}"} for n, row in enumerate(clusters(80 * (part + 1)))]
        for row in rows:
            row["documents"][0] += f"\n\n{banner}"
        write_lines(tmp_path / f"{part}.jsonl", iter(rows))
    sources, config = find_sources([tmp_path]), PrepareConfig(out="data", vocab_size=300, boilerplate=0.5)
    here, ray = (train_vocabulary(sources, config, "lower", on_ray=on_ray).sha256 for on_ray in (False, True))
    assert here == ray
    here, ray = (find_boilerplate(sources, config, on_ray=on_ray) for on_ray in (False, True))
    assert here == ray and len(here) == 1
    assert capsys.readouterr().err.count("most often 'We use coo") == 2
    (tmp_path / "3.jsonl.gz").write_bytes(gzip.compress((tmp_path / "2.jsonl").read_bytes())[:-200])
    for on_ray in (False, True):
        with pytest.raises(UserError, match=r"3\.jsonl\.gz"):
            train_vocabulary(find_sources([tmp_path]), config, "lower", on_ray=on_ray)


@pytest.mark.long
@pytest.mark.slow
def test_prepare_leaves_no_ray_running(tmp_path, vocabulary):
    """Small work does not even load Ray; what starts it ends it, also on errors, and a session that was there stays."""
    write_lines(tmp_path / "small.jsonl", clusters(300))
    large = {"documents": ["word " * 200], "unread": "x" * 400_000}  # it is the size of the files that asks for Ray
    write_lines(tmp_path / "large.jsonl", iter([large] * 30))
    write_lines(tmp_path / "wrong.jsonl", iter([{"documents": [5], "unread": "x" * 10_000_000}]))
    script = f"""
import sys, psutil, raysum, raysum.errors
from raysum.runtime import forkserver
def prepare(name):
    try:
        raysum.prepare(f"{{name}}.jsonl", f"{{name}}.data", vocab={vocabulary!r})
    except raysum.errors.UserError as error:
        print(str(error)[:50])
def left():
    import ray
    return ray.is_initialized(), forkserver._server, [p.name() for p in psutil.Process().children(recursive=True)]
prepare("small")
assert not psutil.Process().children() and "ray" not in sys.modules
prepare("large")
assert "ray" in sys.modules
assert left() == (False, None, []), left()
prepare("wrong")
assert left() == (False, None, []), left()
"""
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "1 of 1 clusters are rejected, so nothing is left: "[:50].strip()
    assert Dataset.open(tmp_path / "large.data").rows("train") == 30


def test_vocabulary_is_trained_on_the_train_split_only(tmp_path, capsys):
    write_lines(tmp_path / "train.jsonl", clusters(60))
    write_lines(tmp_path / "test.jsonl", iter([{"title": "Zürich", "documents": ["qqq ßß"], "summary": "qqq"}]))
    sources = [str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")]
    report = prepare(sources, str(tmp_path / "data"), vocab_size=4000, normalize="lower").to_dict()
    assert 9 < report["pieces"] < 4000
    assert f"only {report['pieces']} of 4000 pieces" in capsys.readouterr().err
    dataset = Dataset.open(tmp_path / "data")
    vocabulary = load_tokenizer(dataset.vocabulary_path)
    assert dataset.recipe.normalize == "lower" and dataset.vocabulary_hash == vocabulary.sha256
    row = next(dataset.read("test"))
    assert 0 in row["ids"] and row["id"] == "test.jsonl:1"  # letters that only the test split has are unknown
    first = next(dataset.read("train"))
    assert vocabulary.decode(first["target_ids"]) == next(clusters(1))["summary"].lower()


def test_clusters_of_one_id_are_counted_and_said_and_an_example_is_shown(tmp_path, capsys):
    rows = [
        {
            "id": name,
            "title": "T",
            "documents": ["Tea is a drink that many people like very much."],
            "summary": "Tea is hot.",
        }
        for name in "abcabb"
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = prepare(tmp_path / "c.jsonl", tmp_path / "data", vocab_size=200, test=0.4).dataset
    assert "3 of 6 clusters have the id of another, such as" in capsys.readouterr().err
    assert made.manifest["repeated_ids"] == 3
    card = Card.of(str(made.path)).to_dict()
    assert card["repeated_ids"] == 3
    assert card["example"]["title"] == "T" and card["example"]["text 1"].startswith("Tea is a drink")
