"""The dataset reader: rows, slices, row groups, and folders that are no datasets."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from helpers.small_datasets import as_formerly, write_dataset
from helpers.special_ids import TITLE_END
from raysum.config.decoding import SourceConfig
from raysum.data.dataset import MANIFEST, ROW_GROUP, Dataset
from raysum.data.inspection import Card, check_dataset
from raysum.data.recipe import Recipe
from raysum.data.rows import references, table_of
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.stream.collators.summarization import Summarization
from raysum.stream.loader import batches, read_rows
from raysum.stream.plan import PlanSettings
from raysum.stream.stream import Stream
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "set", {"train": 300, "valid": 5}, shards=2)


def test_row_groups_and_lengths_follow_file_order(folder):
    dataset = Dataset.open(folder)
    assert dataset.splits == ["train", "valid"] and dataset.kind == "summarization"
    assert dataset.rows("train") == 300 and [file.name for file in dataset.files("train")][0] == "train-00000.parquet"
    groups = [(file.name, number, rows) for file, number, rows in dataset.row_groups("train")]
    first = [("train-00000.parquet", 0, 64), ("train-00000.parquet", 1, 64), ("train-00000.parquet", 2, 22)]
    assert groups == [*first, *(("train-00001.parquet", number, rows) for _, number, rows in first)]
    lengths = dataset.lengths("train")
    rows = dataset.read("train", ["ids", "paragraph_offsets", "target_ids"])
    found = [(len(row["ids"]), len(row["paragraph_offsets"]) - 1, len(row["target_ids"])) for row in rows]
    assert lengths.dtype == np.int32 and lengths.tolist() == [list(row) for row in found]


def test_single_rows_equal_the_whole(folder):
    whole = list(Dataset.open(folder).read("train", ["id", "ids"]))
    rows = np.array([0, 63, 64, 149, 150, 213, 214, 299])
    found = read_rows(str(folder), "train", rows, ("id", "ids"))
    assert list(found) == rows.tolist()
    for number, row in found.items():
        assert row["id"] == whole[number]["id"] == f"train-{number}"
        assert np.array_equal(row["ids"], whole[number]["ids"])


def test_shards_of_before_there_were_several_references_are_read(folder, tmp_path):
    dataset = Dataset.open(folder)
    former = [{name: row[name] for name in row if not name.startswith("other_")} for row in dataset.read("train")]
    (tmp_path / "old").mkdir()
    vocabulary = load_tokenizer(dataset.vocabulary_path)
    writer = DatasetWriter(tmp_path / "old", "summarization", dataset.recipe, vocabulary)
    parts = [former[:150], former[150:]]
    old = writer.finish([writer.add(f"{n}", "train", [table_of(part, writer.kind)]) for n, part in enumerate(parts)])
    assert old.lengths("train").tolist() == dataset.lengths("train").tolist()
    assert references(next(old.read("train"))) == ["words"] and old.reference_lengths("train").shape == (300, 1)
    streams = [Stream(str(path), "train", SourceConfig(), PlanSettings(200, 4), Summarization()) for path in
               (folder, old.path)]  # fmt: skip
    was, now = ([batch.digest for batch in batches(stream, 0, 1, 0, 30)] for stream in streams)
    assert was == now


def test_split_names_are_checked(folder, tmp_path):
    dataset = Dataset.open(folder)
    assert dataset.split("valid") == "valid"
    with pytest.raises(UserError, match=r"no split .test.: train, valid; choose one with --split .* or .* --test=0.1"):
        dataset.split("test")
    with pytest.raises(UserError, match=r"several splits: train, valid; choose one with --split \(searches: split=\)$"):
        dataset.split(None)
    assert Dataset.open(write_dataset(tmp_path / "one", {"test": 3}, shards=1)).split(None) == "test"


def test_folders_that_are_no_datasets(tmp_path):
    def refused(folder: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            Dataset.open(folder)

    refused(tmp_path / "absent", "no dataset")
    refused(tmp_path, "is not a dataset")
    whole = write_dataset(tmp_path / "set", {"train": 4}, shards=1)
    content = (whole / MANIFEST).read_text()
    (whole / MANIFEST).write_text(json.dumps(json.loads(content) | {"format": 99}))
    refused(whole, "dataset format 99")
    (whole / MANIFEST).write_text("{half")
    refused(whole, "does not read as JSON .*; restore a copy")
    (whole / MANIFEST).write_text(content)
    (whole / "train-00000.parquet").unlink()
    refused(whole, "lacks train-00000.parquet")


def test_a_wrong_recipe_names_its_key(folder, tmp_path):
    other = write_dataset(tmp_path / "set", {"train": 4})
    as_formerly(other, recipe=Dataset.open(folder).manifest["recipe"] | {"max_paragraph": 3})
    with pytest.raises(UserError, match="max_paragraph: Extra inputs"):
        Dataset.open(other)


def printed(card: Card) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(card.render())
    return console.file.getvalue()


def test_card_states_what_was_cut(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest |= {"rows_in": 310, "rows": 305, "rejected": {"no documents": 5}, "pieces": 200}
    counts = {"words": 1000, "words_ranked_out": 500, "tokens": 800, "tokens_cut": 200}
    manifest["splits"]["train"]["counts"] = counts | {"paragraphs_ranked_out": 7}
    manifest["splits"]["valid"]["counts"] = {}
    as_formerly(folder, **manifest)
    shown = Card.of(str(folder))
    card = shown.to_dict()
    assert card["splits"]["train"]["source_cut"] == 0.625  # half ranked out, a quarter of the rest beyond N
    assert card["splits"]["valid"]["source_cut"] == 0
    lengths = Dataset.open(folder).lengths("train")[:, 0]
    assert card["splits"]["train"]["lengths"]["source_tokens"][0] == lengths.min()
    assert card["splits"]["train"]["lengths"]["source_tokens"][-1] == lengths.max()
    text = printed(shown)
    assert "paragraphs ranked out, long ones split" in text
    assert "5 no documents" in text and "62.5 %" in text and "305 of 310" in text
    frame = shown.to_pandas()
    assert frame.shape == (6, 9) and frame["most"][0] == lengths.max() and set(frame["split"]) == {"train", "valid"}


def test_format_1_is_read_with_titles_by_their_marks_and_facts_as_an_extra_field(tmp_path):
    whole = write_dataset(tmp_path / "set", {"train": 70}, shards=1)
    file = whole / "train-00000.parquet"
    table = pq.read_table(file)
    titled = [[9, 10, TITLE_END, *ids] if row % 2 else ids for row, ids in enumerate(table["ids"].to_pylist())]
    facts = ['[{"value": "red"}]' if row % 3 else "" for row in range(70)]
    former = table.drop_columns(["title_tokens", "extra", "ids"])
    former = former.append_column("ids", pa.array(titled, pa.list_(pa.int32()))).append_column("facts", pa.array(facts))
    pq.write_table(former, file, row_group_size=ROW_GROUP)
    as_formerly(whole, format=1)
    rows = list(Dataset.open(whole).read("train"))
    assert [row["title_tokens"] for row in rows] == [3 * (row % 2) for row in range(70)]
    assert [json.loads(row["extra"])["facts"][0]["value"] for row in rows if row["extra"]] == ["red"] * 46
    _, second, *_ = Dataset.open(whole).read("train", ["ids", "title_tokens"])
    assert second["title_tokens"] == 3 and second["ids"][:3].tolist() == [9, 10, TITLE_END]
    assert set(second) == {"ids", "title_tokens"}


def test_every_kind_of_dataset_is_shown(tmp_path):
    vocabulary = Vocabulary.train(["a few words of text"] * 9, 30)
    writer = DatasetWriter(tmp_path, "alignment", Recipe(vocabulary_sha256=vocabulary.sha256), vocabulary)
    rows = [{"id": str(n), "embeddings": np.zeros(4 * n, np.float16), "label": np.ones(n) / n} for n in (1, 2, 5)]
    dataset = writer.finish([writer.add("train", "train", [table_of(rows, "alignment")])])
    assert dataset.lengths("train")[:, 1].tolist() == [1, 2, 5]
    card = Card.of(str(tmp_path)).to_dict()
    assert (card["kind"], card["rows"], card["rows_in"]) == ("alignment", 3, 3)
    assert "(alignment)" in printed(Card.of(str(tmp_path)))


def test_a_fingerprint_tells_datasets_apart_and_not_how_they_were_written(tmp_path):
    one, same, other = (
        Dataset.open(write_dataset(tmp_path / name, {"train": 30}, shards=1, seed=seed)).fingerprint
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert one == same != other


def test_every_byte_is_checked_and_all_damage_is_named(tmp_path):
    folder = write_dataset(tmp_path / "set", {"train": 300, "valid": 5}, shards=2)
    sound = check_dataset(str(folder))
    assert sound.rows == sum(map(Dataset.open(folder).rows, Dataset.open(folder).splits))
    assert sound.files == len(list(folder.iterdir())) and sound.bytes > 1000
    shutil.copytree(folder, copied := tmp_path / "copied")
    damaged = sorted([*copied.glob("*.parquet")][:1] + [*copied.glob("*.npy")][:1])
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(UserError) as told:
        check_dataset(str(copied))
    assert [file.name for file in damaged if file.name not in str(told.value)] == []
