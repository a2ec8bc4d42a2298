"""Published datasets: their rows, their files, the pages that tensor2tensor fetches, and ranked rows of ids."""

import gzip
import json
import struct

import pytest
import torch
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # an implementation of its own

from helpers.lisbon import read_records
from helpers.special_ids import BOS, EOS, SENTENCE_END, TITLE_END
from raysum.data.recipe import Recipe
from raysum.decode.summary import NoSummary, Summaries
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import RowBuilder, prepare_example
from raysum.sources.documents.file_positions import Origin
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources
from raysum.sources.pairing import unpaired
from raysum.sources.record import Rejected
from raysum.tokenizers.loading import load_tokenizer

ABSTRACTS = {"aid": "math1", "mid": "9", "abstract": "We prove.", "related_work": "As @cite_2 and @cite_11 show."}
PAPERS = {"@cite_2": {"mid": "1", "abstract": "Two."}, "@cite_3": {"mid": "", "abstract": ""}}
COLUMNS = {"cite_N": ["@cite_2", "@cite_3"], "mid": ["1", ""], "abstract": ["Two.", ""]}
HOW_TO = {"url": "u", "title": "How to", "summary": "Do.", "article": "Do it.", "step_headers": "x"}
FLOODS = [{"title": "Flood", "text": "It rained.", "url": "http://a"}, {"text": "It rained on."}]
STUDIES = {"review_id": 7, "pmid": ["1"], "title": ["T"], "abstract": ["It helps."], "target": "Yes."}
PUBLISHED = [  # a row, its documents and its summary
    ({"document": "One.\nMore. ||||| Two. |||||", "summary": "– They met."}, ["One.\nMore.", "Two."], "They met."),
    ({"document": "one . story_separator_special_tag two .", "summary": "they ."}, ["one .", "two ."], "they ."),
    ({"id": 7, "summary": "A flood.", "articles": FLOODS}, ["Flood\nIt rained.", "It rained on."], "A flood."),
    (ABSTRACTS | {"ref_abstract": PAPERS}, ["We prove.", "Two."], "As @cite and @cite show."),
    (ABSTRACTS | {"ref_abstract": COLUMNS}, ["We prove.", "Two."], "As @cite and @cite show."),
    ({"id": "x", "article": "It rained.", "highlights": "Rain .\nMore rain ."}, ["It rained."], "Rain .\nMore rain ."),
    ({"text": ["One.", "Two."], "tgt": "Both."}, ["One.", "Two."], "Both."),
    ({"headline": "\nDo.\nRest.", "title": "How", "text": "Do it."}, ["Do it."], "Do.\nRest."),
    ({"id": "5", "dialogue": "A: Hi.", "summary": "They met."}, ["A: Hi."], "They met."),
    (
        {"review_id": 7, "pmid": ["1"], "title": ["T"], "abstract": ["It helps."], "target": "Yes."},
        ["T\n\nIt helps."],
        "Yes.",
    ),
    (HOW_TO, ["Do it."], "Do."),
    ({"article": "A.", "highlights": "B.", "documents": ["C."], "summary": "D."}, ["C."], "D."),  # our fields count
]


def clusters(*paths, **mapping):
    """Return the split, id, title, texts and summaries of each row in ``paths``."""
    found = []
    for source in find_sources(paths, FieldMapping(**mapping)):
        for record in source.records():
            one = read_cluster(record.cluster())
            found.append((source.split, one.id, one.title, [text for _, text in one.documents], one.summaries))
    return found


@pytest.mark.parametrize(("row", "texts", "summary"), PUBLISHED)
def test_rows_of_published_datasets_are_known_by_their_keys(tmp_path, row, texts, summary):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    id = str(row.get("aid") or row.get("review_id") or row.get("id", "rows.jsonl:1"))
    title = row.get("title", "") if isinstance(row.get("title"), str) else ""
    assert clusters(tmp_path / "rows.jsonl") == [(None, id, title, texts, [summary])]


@pytest.mark.parametrize(
    ("row", "format", "reason"),
    [
        ({"articles": 5, "summary": "x"}, None, r"not a row of wcep \('int' object is not iterable"),
        ({"document": 5, "summary": "x"}, None, "not a row of multi-news"),
        ({"abstract": "x", "related_work": "y", "ref_abstract": "z"}, None, "not a row of multi-xscience"),
        ({"documents": ["x"], "summary": "x"}, "wcep", r"not a row of wcep \(it has no articles\)"),
    ],
)
def test_a_row_that_only_looks_like_one_of_a_published_dataset_is_rejected(tmp_path, row, format, reason):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(Rejected, match=reason):
        clusters(tmp_path / "rows.jsonl", format=format)


def test_several_references_of_published_datasets(tmp_path):
    rows = [
        {"group_id": "b1", "rev2": "Good.", "rev1": "Bad.", "rev10": "Fine.", "summ1": "So.", "summ2": "So so."},
        {"paper_id": "p", "title": "T", "source": ["We prove. ", "It holds."], "target": ["A proof.", "Proofs."]},
        {"fname": "test_1", "dialogue": "#Person1#: Hi.", "summary1": "A.", "summary2": "B.", "topic1": "x"},
        {"article_id": "a", "sections": [["One.", "Two."], ["Three."]], "section_names": ["intro", "end"],
         "article_text": ["One.", "Two.", "Three."], "abstract_text": ["<S> We count . </S>", "<S> Up . </S>"]},
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert clusters(tmp_path / "rows.jsonl") == [
        (None, "b1", "", ["Bad.", "Good.", "Fine."], ["So.", "So so."]),
        (None, "p", "T", ["We prove. It holds."], ["A proof.", "Proofs."]),
        (None, "test_1", "", ["#Person1#: Hi."], ["A.", "B."]),
        (None, "a", "", ["One.\nTwo.", "Three."], ["We count .\nUp ."]),
    ]


def test_a_meeting_of_qmsum_is_a_cluster_for_each_query(tmp_path):
    turns = [{"speaker": "Ann", "content": "Who\nstarts ?"}, {"speaker": "Bob", "content": "Me ."}]
    queries = {"general_query_list": [{"query": "All?", "answer": "They start."}]}
    queries |= {"specific_query_list": [{"query": "Who?", "answer": "Bob."}]}
    (tmp_path / "train.jsonl").write_text(json.dumps({"meeting_transcripts": turns, **queries, "topic_list": []}))
    text = "Ann: Who starts ?\nBob: Me ."
    assert clusters(tmp_path) == [
        ("train", "train.jsonl:1:1", "All?", [text], ["They start."]),
        ("train", "train.jsonl:1:2", "Who?", [text], ["Bob."]),
    ]
    (first, _) = read_records([tmp_path])
    assert Origin.of(first.raw["documents"][0]).places == [(0, "Ann"), (18, "Bob")]


def test_multi_news_as_pairs_of_files(tmp_path):
    (tmp_path / "val.src.cleaned").write_text("One.NEWLINE_CHARMore.|||||Two.\nThree.|||||\n")
    (tmp_path / "val.tgt").write_text("– They met.\n– He.NEWLINE_CHARShe.\n")
    (tmp_path / "test.txt.src.fixed.txt").write_text("one . story_separator_special_tag two .\n")
    (tmp_path / "test.txt.tgt.fixed.txt").write_text("– they met .\n")
    assert clusters(tmp_path) == [
        ("test", "test.txt.src.fixed.txt:1", "", ["one .", "two ."], ["they met ."]),
        ("valid", "val.src.cleaned:1", "", ["One.\nMore.", "Two."], ["They met."]),
        ("valid", "val.src.cleaned:2", "", ["Three."], ["He.\nShe."]),
    ]
    assert not [*unpaired([tmp_path])]
    (tmp_path / "val.tgt").write_text("– They met.\n")
    with pytest.raises(UserError, match=r"the same number of lines: .*val.src.cleaned has a line 2"):
        clusters(tmp_path / "val.src.cleaned")
    for name in ("val.tgt", "test.txt.src.fixed.txt"):
        (tmp_path / name).unlink()
    without_targets, without_sources = unpaired([tmp_path])
    assert without_targets.startswith(f"{tmp_path}/val.src.cleaned has no file of summaries")
    assert without_sources.startswith(f"{tmp_path}/test.txt.tgt.fixed.txt is skipped: it has no file of sources")


def test_stories_of_cnn_dailymail(tmp_path):
    (tmp_path / "b2.story").write_bytes(b"\xef\xbb\xbfIt rained.\r\n\r\nIt did.\r\n\r\n@highlight\r\n\r\nRain\r\n\r\n")
    (tmp_path / "b10.story").write_text("It snowed.\n\n@highlight\n\nSnow\n\n@highlight\n\nMuch  snow\n")
    (tmp_path / "b11.story").write_text("Nothing said.\n")
    assert clusters(tmp_path) == [
        (None, "b2", "", ["It rained.\n\nIt did."], ["Rain"]),
        (None, "b10", "", ["It snowed."], ["Snow\nMuch snow"]),
        (None, "b11", "", ["Nothing said."], []),
    ]


def test_subjects_of_aeslc_are_alternative_summaries(tmp_path):
    (tmp_path / "enron_subject_line" / "dev").mkdir(parents=True)
    (tmp_path / "README.md").write_text("The set.")
    mail = "Ann found a spot.\n\n@subject\nParking\n\n@ann0\na  spot\n\n@ann1\n"
    (tmp_path / "enron_subject_line" / "dev" / "ann_sent_1.subject").write_text(mail)
    assert clusters(tmp_path) == [("valid", "ann_sent_1", "", ["Ann found a spot."], ["Parking", "a spot"])]


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def block(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def tfrecord(**fields):
    """One record, as the format's and the messages' definitions say; an int64 field stands beside."""
    lists = [(name, block(1, b"".join(block(1, value) for value in values))) for name, values in fields.items()]
    entries = [*lists, ("length", block(3, block(1, varint(300))))]
    body = block(1, b"".join(block(1, block(1, name.encode()) + block(2, value)) for name, value in entries))
    head = struct.pack("<Q", len(body))
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in (head, body))


@pytest.fixture
def wikis(tmp_path):
    """A shard of two articles; one reference stands in both processes, cut in the first."""
    shard = "00003-of-01000"
    for name in ("wiki_content", "wiki_urls", "process_1", "process_20"):
        (tmp_path / name).mkdir()
    articles = [
        tfrecord(url=[b"w/tea"], title=[b"Tea"], section_titles=[b"", b"Use"], section_texts=[b" Tea is hot.\n", b"x"]),
        tfrecord(url=[b"w/rain"], title=[b"Rain"], section_titles=[b""], section_texts=[b"Rain falls."]),
    ]
    (tmp_path / "wiki_content" / f"wiki_content.tfrecords-{shard}").write_bytes(b"".join(articles))
    urls = {"w/tea": {"refs": ["r/1", "r/gone", "r/2"]}, "w/rain": {"refs": ["r/gone"]}}
    (tmp_path / "wiki_urls" / f"wiki_urls.json-{shard}").write_text(json.dumps(urls))
    pages = {"process_1": [(b"r/1", b"Cut")], "process_20": [(b"r/2", b"Green tea."), (b"r/1", "Té.\nLong.".encode())]}
    for process, found in pages.items():
        content = b"".join(tfrecord(url=[url], content=[text]) for url, text in found)
        (tmp_path / process / f"references.tfrecords.gz-{shard}").write_bytes(gzip.compress(content))
    return tmp_path / "wiki_content" / f"wiki_content.tfrecords-{shard}"


def test_tensor2tensors_wikisum(wikis):
    first, second = read_records([wikis.parent])
    assert first.cluster() == {
        "id": "w/tea",
        "title": "Tea",
        "documents": [{"source": "r/1", "text": "Té.\nLong."}, {"source": "r/2", "text": "Green tea."}],
        "summary": "Tea is hot.",
    }
    with pytest.raises(Rejected, match="none of its references was fetched"):
        second.cluster()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "damaged at record 2: the checksum of its bytes"),
        (lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:], "damaged at record 1: the checksum of its bytes"),
        (lambda data: b"\xff" + data[1:], "damaged at record 1: the checksum of its length"),
        (lambda data: data + b"abc", "damaged at record 3: the checksum of its length"),
    ],
)
def test_a_damaged_record_is_named(wikis, damage, message):
    wikis.write_bytes(damage(wikis.read_bytes()))
    with pytest.raises(UserError, match=message):
        read_records([wikis])


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"x" + data])
def test_damaged_and_missing_pages_are_named_and_not_the_articles(wikis, damage):
    pages, *others = sorted(wikis.parents[1].rglob("references*"), reverse=True)
    pages.write_bytes(damage(pages.read_bytes()))
    with pytest.raises(UserError, match=rf"^{pages} cannot be read to its end .*; fetch it again"):
        clusters(wikis)
    for file in (pages, *others):
        file.unlink()
    with pytest.raises(UserError, match="needs references.tfrecords.gz-00003-of-01000 in its folder or beside it"):
        clusters(wikis)


@pytest.mark.parametrize("inside", ["", "wiki_content"])
def test_pages_of_a_neighbouring_folder_are_not_taken(wikis, tmp_path, inside):
    beside, alone = tmp_path / "beside" / inside, tmp_path / "alone"
    for folder in (beside, alone):
        folder.mkdir(parents=True)
        (folder / wikis.name).write_bytes(wikis.read_bytes())
    wikis.unlink()
    for name in ("wiki_urls", "process_1", "process_20"):
        (tmp_path / name).rename(tmp_path / "beside" / name)
    assert [record.raw["id"] for record in read_records([beside])] == ["w/tea", "w/rain"]
    with pytest.raises(UserError, match="alone/.* needs wiki_urls.json-00003-of-01000 in its folder or beside it"):
        read_records([alone])


@pytest.fixture(scope="module")
def pieces(shared):
    return load_tokenizer(shared / "data/wikisum_vocab/spm9998_3.model")


@pytest.fixture
def ranked(pieces):
    """A row of the published ranked format: a title, an empty paragraph, a summary of two sentences."""
    title, first, second = (pieces.encode(text) for text in ("green tea", "tea is hot .", "tea is green ."))
    target = [BOS, *pieces.encode("tea is"), SENTENCE_END, *pieces.encode("hot"), EOS]
    return {"src": [[*title, TITLE_END, *first], [], second], "tgt": target, "tgt_str": "<t> Tea is</t><Q> hot"}


def recipe_of(pieces, **choices):
    return Recipe(vocabulary_sha256=pieces.sha256, normalize="lower-split", **choices)


def converted(tmp_path, rows):
    torch.save(rows, tmp_path / "WIKI.train.0.pt")
    return [record.cluster() for record in read_records([tmp_path])]


def test_ids_are_kept_as_they_are(tmp_path, ranked, pieces):
    (raw,) = converted(tmp_path, [ranked])
    row = prepare_example(raw, recipe_of(pieces), pieces)
    assert row["ids"].tolist() == [*ranked["src"][0], *ranked["src"][2]]
    assert row["paragraph_offsets"].tolist() == [0, len(ranked["src"][0]), len(row["ids"])]
    assert row["ids"][row["title_tokens"] - 1] == TITLE_END
    assert row["target_ids"].tolist() == ranked["tgt"]
    assert (row["title"], row["text"]) == ("green tea", ["tea is hot .", "tea is green ."])
    assert row["summary"].split() == ["Tea", "is", "hot"]
    assert row["document"].tolist() == [0, 2] and row["source"][2] == "paragraph 3"
    short = prepare_example(raw, recipe_of(pieces, max_paragraphs=1, paragraph_tokens=8), pieces)
    assert short["ids"].tolist() == ranked["src"][0][:8]


def test_all_of_the_published_format_is_as_torch_reads_it(shared, pieces):
    """Beside a plain reading of the file: the ids of each paragraph and target."""
    path = shared / "data/scisummnet/ranked_format/WIKI.test.0.pt"
    rows = torch.load(path, weights_only=True)
    records = read_records([path])
    assert len(records) == len(rows) == 50
    for record, raw in zip(records, rows, strict=True):
        row = prepare_example(record.cluster(), recipe_of(pieces), pieces)
        offsets = row["paragraph_offsets"]
        found = [row["ids"][start:end].tolist() for start, end in zip(offsets, offsets[1:], strict=False)]
        assert found == [ids for ids in raw["src"] if ids]
        assert row["target_ids"].tolist() == raw["tgt"]


def test_ids_are_decoded_where_sentences_are_wanted(tmp_path, ranked, pieces):
    (raw,) = converted(tmp_path, [ranked])
    (row,), _ = RowBuilder(recipe_of(pieces, kind="extraction"), pieces).rows(raw)
    assert row["text"] == ["tea is hot .", "tea is green ."]
    assert row["title"] == "green tea"


def test_given_graphs_are_cut_to_the_kept_paragraphs(tmp_path, ranked, pieces):
    graph = [[1.0, 0.9, 0.25], [0.9, 1.0, 0.8], [0.25, 0.8, 1.0]]
    (raw,) = converted(tmp_path, [ranked | {"sim_graph": graph}])
    row = prepare_example(raw, recipe_of(pieces, graph="similarity"), pieces)
    edges = list(zip(row["graph_row"].tolist(), row["graph_col"].tolist(), row["graph_value"].tolist(), strict=True))
    assert edges == [(0, 1, 0.25), (1, 0, 0.25)]  # the empty paragraph has none
    with pytest.raises(Rejected, match=r"no discourse graph in a row of ids \(it has sim_graph"):
        prepare_example(raw, recipe_of(pieces, graph="discourse"), pieces)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"src": [[40000]]}, r"an id is not of the vocabulary \(.*40000 of 32000 pieces"),
        ({"src": [[-1]]}, "an id is not of the vocabulary"),
        ({"src": [[1.5]]}, "ids are no lists of whole numbers"),
        ({"src": [[True]]}, "ids are no lists of whole numbers"),
        ({"src": [["tea"]]}, "ids are no lists of whole numbers"),
        ({"src": ["tea"]}, "ids are no lists of whole numbers"),
        ({"src": [[[1]]]}, "ids are no lists of whole numbers"),
        ({"src": 5}, "ids are no lists of whole numbers"),
        ({"src": []}, "no text in the documents"),
        ({"src": [[], []]}, "no text in the documents"),
        ({"tgt": [9, 10]}, "target ids do not begin with <S>"),
    ],
)
def test_wrong_ids_are_rejected(tmp_path, ranked, pieces, change, reason):
    (raw,) = converted(tmp_path, [ranked | change])
    with pytest.raises(Rejected, match=reason):
        prepare_example(raw, recipe_of(pieces), pieces)


def test_rows_of_ids_without_their_vocabulary_say_what_they_need(tmp_path, ranked):
    (raw,) = converted(tmp_path, [ranked])
    (tmp_path / "train.jsonl").write_text('{"documents": ["Tea is hot."]}\n' * 20)
    with pytest.raises(UserError, match=r"WIKI.train.0.pt holds ids, .*: add --vocab FILE.model"):
        prepare(tmp_path, tmp_path / "data")
    with pytest.raises(Rejected, match=r"need the vocabulary that made them \(prepare them with --vocab"):
        read_cluster(raw)
    shown = Summaries([NoSummary(str(n), f"cluster {n} cannot be summarized: no text") for n in range(9)]).render()
    assert shown.count("no text") == 4 and shown.endswith("\nerror: no text: 6 more (see --json)")
