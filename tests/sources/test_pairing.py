"""Documents and summaries in different folders or files, with the names that published datasets give them."""

import pytest

from helpers.lisbon import read_records
from raysum.errors import UserError
from raysum.prepare.job import prepare
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources


def write(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def pairs(path, **options):
    """Return the id, the texts of the documents and the summaries of each cluster."""
    sources = find_sources([path], FieldMapping.of([], **{name: str(value) for name, value in options.items()}))
    records = [record for source in sources for record in source.records()]
    assert not any(record.problem for record in records)
    return [
        (record.id, [one["text"] if isinstance(one, dict) else one for one in record.raw["documents"]],
         record.raw.get("summaries") or [record.raw["summary"]])
        for record in records
    ]  # fmt: skip


OPINOSIS = {
    "topics/room_hotel_1.txt.data": "Small room.",
    "topics/room_hotel_10.txt.data": "Large room.",
    "summaries-gold/room_hotel_1/room_hotel_1.1.gold": "Small.",
    "summaries-gold/room_hotel_1/room_hotel_1.2.gold": "Tiny.",
    "summaries-gold/room_hotel_10/room_hotel_10.1.gold": "Large.",
    "scripts/run.pl": "print",
    "README.txt": "About.",
}
DUC = {
    "docs/d30001t/APW1.0240": "<DOC>\n<DOCNO> APW1 </DOCNO>\n<TEXT>\nA storm came.\n</TEXT>\n</DOC>",
    "docs/d30001t/APW2.0269": "It left.",
    "docs/d30010t/NYT1.0001": "A vote.",
    "docs/d30010t/README": "About.",
    "models/D30001.M.100.T.A": "A storm.",
    "models/D30001.M.100.T.B": "Storm.",
    "models/D30010.M.100.T.C": "Vote.",
}
MULTILING = {
    "SourceTexts/M0001.english": "One.",
    "SourceTexts/M0002.english": "Two.",
    "SourceTexts/M0001.french": "Un.",
    "SourceTexts/M0011.english": "Other.",
    "ModelSummaries/english/M000.A.250": "Both.",
    "ModelSummaries/english/M001.A.250": "Another.",
    "ModelSummaries/french/M000.B.250": "Tous.",
}
SINGLE = {
    "body/en/0a1_body.txt": "Long.",
    "body/de/0a1_body.txt": "Lang.",
    "summary/en/0a1_summary.txt": "Short.",
    "summary/de/0a1_summary.txt": "Kurz.",
}
PLAIN = {
    "docs/a.v1.txt": "A.",
    "docs/a.v2.txt": "B.",
    "docs/c.txt": "C.",
    "summaries/a.v1.txt": "a",
    "summaries/a.v2.md": "b",
}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            OPINOSIS,
            [("room_hotel_1", ["Small room."], ["Small.", "Tiny."]), ("room_hotel_10", ["Large room."], ["Large."])],
        ),
        (
            DUC,
            [("d30001t", ["A storm came.", "It left."], ["A storm.", "Storm."]), ("d30010t", ["A vote."], ["Vote."])],
        ),
        (
            MULTILING,
            [("M000.english", ["One.", "Two."], ["Both."]), ("M000.french", ["Un."], ["Tous."]),
             ("M001.english", ["Other."], ["Another."])],
        ),
        (SINGLE, [("0a1.de", ["Lang."], ["Kurz."]), ("0a1.en", ["Long."], ["Short."])]),
        (PLAIN, [("a.v1", ["A."], ["a"]), ("a.v2", ["B."], ["b"])]),
    ],
)  # fmt: skip
def test_documents_and_summaries_of_equal_names(tmp_path, files, found):
    write(tmp_path / "set", files)
    assert sorted(pairs(tmp_path / "set")) == sorted(found)
    first, *_, last = (
        tmp_path / "set" / name.partition("/")[0] for name in files if "/" in name and "scripts" not in name
    )
    (tmp_path / "x").mkdir()
    last.rename(tmp_path / "x" / "given")  # names of folders do not matter if they are given
    first.rename(tmp_path / "x" / "texts2")
    assert sorted(pairs(tmp_path / "x" / "texts2", summaries=tmp_path / "x" / "given")) == sorted(found)


def test_documents_without_a_summary_are_named(tmp_path, capsys):
    write(tmp_path, PLAIN)
    pairs(tmp_path)
    assert "docs: no counterpart for c.txt" in capsys.readouterr().err
    with pytest.raises(UserError, match="no file in .*other has the name of a document in .*docs"):
        pairs(tmp_path / "docs", summaries=write(tmp_path / "other", {"z.txt": "z"}))
    with pytest.raises(UserError, match="--summaries .*nowhere must be a folder like"):
        pairs(tmp_path / "docs", summaries=tmp_path / "nowhere")


def test_paired_folders_are_prepared(tmp_path):
    write(tmp_path, {f"docs/a{n}.txt": f"The town {n} has a red river bridge." for n in range(9)})
    write(tmp_path, {f"summaries/a{n}.txt": f"A river at {n} is crossed." for n in range(9)})
    result = prepare(tmp_path / "docs", tmp_path / "data", summaries=str(tmp_path / "summaries"), vocab_size=60)
    assert result.to_dict()["rows"] == 9


def test_parallel_files_of_any_names(tmp_path):
    write(tmp_path, {"a.x": "One.|||||Two.\nThree.\n", "b.y": "Both.\nMore.\n", "c.y": "Short.\n"})
    assert pairs(tmp_path / "a.x", summaries=tmp_path / "b.y") == [
        ("a.x:1", ["One.", "Two."], ["Both."]),
        ("a.x:2", ["Three."], ["More."]),
    ]
    with pytest.raises(UserError, match="must have the same number of lines"):
        pairs(tmp_path / "a.x", summaries=tmp_path / "c.y")


def test_all_files_are_documents_if_the_format_is_text(tmp_path):
    folder = write(
        tmp_path / "c", {"a/1.0400": "It rained.", "a/2.english": "It snowed.", "a/LICENSE": "Free.", "b/x": "Sun."}
    )
    (folder / "a" / "photo.0500").write_bytes(b"\xff\xd8\xff" + bytes(200))
    with pytest.raises(UserError, match="holds neither files"):
        read_records([folder])
    (source,) = find_sources([folder], FieldMapping.of([], format="text"))
    found = {record.id: [one["text"] for one in record.raw["documents"]] for record in source.records()}
    assert found == {"a": ["It rained.", "It snowed."], "b": ["Sun."]}
