"""Subtitles as documents: cues become paragraphs with times, without markup."""

import time

import pytest

from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.sources.documents.read import read_document
from raysum.sources.find import find_sources

FERRY = """1
00:00:01,000 --> 00:00:03,500 X1:10
<i>The ferry across the Sarsu</i>
{\\an8}was opened in 1893.

2
00:00:03,600 --> 00:00:06,000
It carried 40
passengers.

3
01:02:10,000 --> 01:02:12,000
2 < 3 people came back.
"""


def test_cues_become_paragraphs_at_pauses(tmp_path):
    for number, content in enumerate((FERRY.encode(), FERRY.replace("\n", "\r\n").encode("utf-16"))):
        path = tmp_path / f"ferry{number}.srt"
        path.write_bytes(content)
        document = read_document(path)
        first = "The ferry across the Sarsu was opened in 1893. It carried 40 passengers."
        assert document.text == f"{first}\n\n2 < 3 people came back."
        assert [*document.sections] == [(0, "00:00:01"), (len(first) + 2, "01:02:10")]


def test_long_speech_has_paragraphs_of_whole_sentences(tmp_path):
    cues = [
        f"{n}\n00:{n // 60:02}:{n % 60:02},000 --> 00:{n // 60:02}:{n % 60:02},900\nIt is {n} now.\n" for n in range(90)
    ]
    (tmp_path / "long.srt").write_text("\n".join(cues))
    paragraphs = read_document(tmp_path / "long.srt").text.split("\n\n")
    assert [len(paragraph.split()) for paragraph in paragraphs] == [60] * 6
    assert all(paragraph.startswith("It is") and paragraph.endswith("now.") for paragraph in paragraphs)


def test_subtitles_are_documents_of_a_cluster(tmp_path):
    folder = tmp_path / "talk"
    folder.mkdir()
    (folder / "film.srt").write_text(FERRY)
    (folder / "review.txt").write_text("The film about the ferry is good.")
    (record,) = [record for source in find_sources([str(tmp_path)]) for record in source.records()]
    names = [name for name, _ in read_cluster(record.raw).documents]
    assert sorted(names) == ["film", "review"]


@pytest.mark.parametrize("content", [b"", b"1\nno time\ntext", b"00:00:01 --> 00:00:02\ntext"])
def test_files_without_cues_are_refused(tmp_path, content):
    (tmp_path / "a.srt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.srt has no subtitles"):
        read_document(tmp_path / "a.srt")


@pytest.mark.parametrize("unit", ["00:00:01,000 --> ", "<", "{\\", "1\n", "00:00:01,000 --> 00:00:02,000\n\n", " "])
def test_hostile_subtitles_are_read_in_linear_time(tmp_path, unit):
    (tmp_path / "a.srt").write_text("00:00:01,000 --> 00:00:02,000\nHello.\n" + unit * (2_000_000 // len(unit)))
    began = time.process_time()
    assert read_document(tmp_path / "a.srt").text.startswith("Hello.")
    assert time.process_time() - began < 20
