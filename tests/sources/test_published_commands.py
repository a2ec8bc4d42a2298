"""The commands of docs/data.md read published datasets at the first try: small files in the published form."""

import csv
import glob
import gzip
import io
import json
import re
import shlex
import sys
import zipfile

import pytest
import xlsxwriter

from helpers.project import ROOT
from raysum.__main__ import main
from raysum.data.dataset import Dataset
from raysum.data.rows import references

TEXT = "The battery of this camera lasts for {} days, and the lens is sharp in bright light."
SHORT = "Battery {} lasts, sharp lens."
COMMANDS = dict(
    re.findall(r"^\| ([\w +-]+) \| `raysum (prepare .*) --out data` \|$", (ROOT / "docs/data.md").read_text(), re.M)
)
SPLITS = {"train": 6, "valid": 2, "test": 2}


def text(number) -> str:
    return TEXT.format(number)


def lines(rows) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def table(rows, delimiter: str, quoting: int = csv.QUOTE_MINIMAL) -> str:
    writer = csv.DictWriter(out := io.StringIO(), [*rows[0]], delimiter=delimiter, quoting=quoting, quotechar='"')
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def opinosis() -> dict[str, str | bytes]:
    """A zip file: sentences in an old encoding, gold summaries in folders, and programs beside them."""
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        for number in range(5):
            name = f"battery_camera{number}_x"
            sentences = "\n".join(f" {text(n)} The café\x92s fine ." for n in range(9))
            archive.writestr(f"OpinosisDataset1.0/topics/{name}.txt.data", sentences.encode("latin-1"))
            for gold in (1, 2):
                archive.writestr(f"OpinosisDataset1.0/summaries-gold/{name}/{name}.{gold}.gold", SHORT.format(gold))
        archive.writestr("OpinosisDataset1.0/scripts/prepare4rouge.pl", "print 1;")
        archive.writestr("__MACOSX/._x", "x")
    return {"OpinosisDataset1.0_0.zip": packed.getvalue()}


def fewsum() -> dict[str, str]:
    def rows(count):
        reviews = {f"rev{n}": f'{text(n)} A 7" screen, "great" lens.' for n in range(1, 9)}
        gold = {f"summ{n}": SHORT.format(n) for n in (1, 2, 3)}
        ratings = {f"rating{n}": "5.0" for n in range(1, 9)}
        return [{"cat": "cloth", "group_id": f"B{n}", **reviews, **gold, **ratings} for n in range(count)]

    return {
        f"artifacts/amazon/gold_summs/{name}.csv": "\n".join(
            "\t".join(row.values()) for row in [dict(zip(rows(1)[0], rows(1)[0], strict=True)), *rows(count)]
        )
        for name, count in zip(("train", "val", "test"), SPLITS.values(), strict=True)
    }


def splits(folder: str, names, row) -> dict[str, str]:
    counts = zip(names, SPLITS.values(), strict=True)
    return {f"{folder}/{name}": lines(row(name, number) for number in range(count)) for name, count in counts}


def scitldr() -> dict[str, str]:
    def row(name, number):
        labels = {"source_labels": [0, 1], "rouge_scores": [0.1, 0.2]}
        id = {"paper_id": f"{name}{number}", "title": "Cameras"}
        return id | labels | {"source": [text(number), text(9)], "target": [SHORT.format(1), SHORT.format(2)]}

    return splits("SciTLDR-Data/SciTLDR-A", ("train.jsonl", "dev.jsonl", "test.jsonl"), row)


def qmsum() -> dict[str, str]:
    def row(name, number):
        turns = [{"speaker": who, "content": text(number)} for who in ("Industrial Designer", "Marketing")]
        general = [{"query": "Summarize the meeting.", "answer": SHORT.format(number)}]
        specific = [{"query": "Which camera?", "answer": SHORT.format(9), "relevant_text_span": [["0", "1"]]}]
        queries = {"general_query_list": general, "specific_query_list": specific}
        return {"topic_list": [], **queries, "meeting_transcripts": turns}

    return splits("data/ALL/jsonl", ("train.jsonl", "val.jsonl", "test.jsonl"), row)


def dialogsum() -> dict[str, str]:
    def row(name, number):
        several = {f"{key}{n}": SHORT.format(n) for n in (1, 2, 3) for key in ("summary", "topic")}
        one = {"summary": SHORT.format(number), "topic": "camera"}
        dialogue = f"#Person1#: {text(number)}\n#Person2#: {text(9)}"
        return {"fname": f"{name}_{number}", "dialogue": dialogue} | (several if ".test." in name else one)

    names = [f"dialogsum.{name}.jsonl" for name in ("train", "dev", "test")]
    hidden = {
        f"DialogSum_Data/dialogsum.hiddentest.{name}.jsonl": lines([{"fname": "1", name: "x"}])
        for name in ("dialogue", "topic")
    }
    return splits("DialogSum_Data", names, row) | hidden


def duc() -> dict[str, str]:
    files = {}
    for number in (30001, 30002, 30003):
        for document in ("APW19981016.0240", "NYT19981017.0001"):
            story = f"<DOC>\n<DOCNO> {document} </DOCNO>\n<TEXT>\n<P>\n{text(number)}\n</P>\n</TEXT>\n</DOC>\n"
            files[f"docs/d{number}t/{document}"] = story
        files |= {f"models/D{number}.M.100.T.{human}": SHORT.format(human) for human in "AB"}
    return files


def multiling() -> dict[str, str]:
    files = {}
    for language in ("english", "french"):
        files |= {f"SourceTexts/M{topic}{n}.{language}": text(topic) for topic in ("000", "001") for n in (1, 2)}
        files |= {
            f"ModelSummaries/{language}/M{topic}.{human}.250": SHORT.format(human)
            for topic in ("000", "001")
            for human in "AB"
        }
    return files


def multi_news() -> dict[str, str]:
    files = {}
    for name, count in zip(("train", "val", "test"), SPLITS.values(), strict=True):
        files[f"multi-news-original/{name}.src"] = f"{text(1)} NEWLINE_CHAR {text(2)}|||||{text(3)}\n" * count
        files[f"multi-news-original/{name}.tgt"] = f"– {SHORT}\n" * count
    return files


def wcep() -> dict[str, bytes]:
    def row(name, number):
        article = {
            "id": 1,
            "title": "Camera",
            "text": text(number),
            "url": "http://a",
            "time": "2016",
            "origin": "WCEP",
        }
        about = {"id": number, "date": "2016-08-25", "category": "Arts", "reference_urls": ["http://a"]}
        return about | {"summary": SHORT.format(number), "articles": [article, article | {"url": "http://b"}]}

    plain = splits("WCEP", ("train.jsonl.gz", "val.jsonl.gz", "test.jsonl.gz"), row)
    return {name: gzip.compress(content.encode()) for name, content in plain.items()}


def wikihow() -> dict[str, str]:
    headline = f"\n{SHORT.format(1)},\n{SHORT.format(2)}"
    rows = [
        {"headline": headline, "title": f"How to Buy{n}", "text": f'{text(n)}\n\n;\n, "{text(2)}"'} for n in range(10)
    ]
    return {"wikihowAll.csv": table(rows, ",", csv.QUOTE_ALL)}


def aci_bench() -> dict[str, str]:
    """Several files of JSON objects with a list of rows, and files of their sections beside them."""
    files = {}
    names = ("train", "valid", "clinicalnlp_taskB_test1", "clinicalnlp_taskC_test2", "clef_taskC_test3")
    for name in names:
        rows = [{"src": f"[doctor] {text(n)}", "tgt": SHORT.format(n), "file": f"{n}-{name}"} for n in range(2)]
        files[f"data/challenge_data_json/{name}.json"] = json.dumps({"data": rows})
        files[f"data/challenge_data_json/{name}_subjective.json"] = json.dumps({"data": rows[:1]})
    return files


def bbc_news() -> dict[str, str]:
    def rows(count):
        return [{"": n, "document": text(n), "summary": SHORT.format(n), "categories": "tech"} for n in range(count)]

    names = zip(("train", "valid", "test"), SPLITS.values(), strict=True)
    return {f"Data/{name}.csv": table(rows(count), ",") for name, count in names}


def contracts() -> dict[str, str]:
    """An object with the id of each row as its key."""
    rows = {
        f"legalsum0{n}": {"doc": "Terms", "original_text": text(n), "reference_summary": SHORT.format(n), "title": ""}
        for n in range(9)
    }
    return {"all_v1.json": json.dumps(rows)}


def convosumm() -> dict[str, str]:
    """Files of parallel lines, one of them with a long suffix, beside a file with all lines."""
    long = "remove_markers_simple_separator.txt"
    files = {}
    counts = {"train.{}": 6, "val.{}": 2, f"email.test.{{}}.{long}": 2, f"email.all.{{}}.{long}": 4}
    for name, count in counts.items():
        files[f"vanilla/{name.format('source')}"] = f"Name: Ann {text(1)}\n" * count
        files[f"vanilla/{name.format('target')}"] = f"{SHORT}\n" * count
    return files


def crd3() -> dict[str, str]:
    def chunk(number):
        lines = ["Hello everyone, my name is Matthew Mercer,", text(number)]
        turn = {"NAMES": ["MATT"], "UTTERANCES": lines, "NUMBER": 0}
        return {"CHUNK": SHORT.format(number), "ALIGNMENT": {"CHUNK ID": number}, "TURNS": [turn, turn]}

    folder = "data/aligned data/c=4"
    return {f"{folder}/C1E00{n}_4_0.json": json.dumps([chunk(1), chunk(2)]) for n in range(3)} | {
        "data/aligned data/test_files": "C1E001\n"
    }


def mts_dialog() -> dict[str, str]:
    def rows(count):
        dialogue = f"Doctor: {text(1)}\nPatient: {text(2)}"
        fields = {"section_header": "GENHX", "section_text": SHORT.format(1), "dialogue": dialogue}
        return [{"ID": n, **fields} for n in range(count)]

    names = ("TrainingSet", "ValidationSet", "TestSet-1-MEDIQA-Chat-2023")
    counts = zip(names, SPLITS.values(), strict=True)
    return {f"Main-Dataset/MTS-Dialog-{name}.csv": table(rows(count), ",") for name, count in counts}


def sumpubmed() -> dict[str, str]:
    files = {f"text/text_{n}.txt": f"{text(n)}\n{text(n + 1)}" for n in range(1, 12)}
    return files | {f"abstract/abstract_{n}.txt": f"BACKGROUND\n{SHORT.format(n)}" for n in range(1, 12)}


def meqsum() -> dict[str, bytes]:
    """A spreadsheet with a third column."""
    book = xlsxwriter.Workbook(saved := io.BytesIO())
    sheet = book.add_worksheet()
    sheet.write_row(0, 0, ["File", "CHQ", "Summary"])
    for number in range(1, 12):
        sheet.write_row(number, 0, [f"{number}.txt", text(number), SHORT.format(number)])
    book.close()
    return {"MeQSum_ACL2019_BenAbacha_Demner-Fushman.xlsx": saved.getvalue()}


def aeslc() -> dict[str, str]:
    """An e-mail a file: its text, its subject, and in two splits the subjects of annotators."""
    files = {"AESLC/README.md": "The set.", "AESLC/LICENSE.md": "CC"}
    for name, count in zip(("train", "dev", "test"), SPLITS.values(), strict=True):
        others = "" if name == "train" else "\n@ann0\nlens\n\n@ann1\nbattery of a camera"
        for number in range(count):
            mail = f"{text(number)}\n\n@subject\n{SHORT.format(number)}\n{others}"
            files[f"AESLC/enron_subject_line/{name}/ann_{name}_{number}.subject"] = mail
    return files


def multi_news_plus() -> dict[str, str]:
    """Lists of rows with the documents before and after cleansing, of all splits in each file."""
    splits = [
        split for split, count in zip(("train", "valid", "test"), SPLITS.values(), strict=True) for _ in range(count)
    ]
    rows = [
        {"idx": n, "document_num": 2, "summary": SHORT.format(n), "split": split}
        | {"cleansed_document": [text(n), text(9)], "raw_document": [text(n), "Log in.", text(9)]}
        for n, split in enumerate(splits)
    ]
    return {
        f"cleansing/cleansed_data/cleansed_data_cot_{n}.json": json.dumps(rows[n : n + 5], indent=4) for n in (0, 5)
    }


def papers_in_russian() -> dict[str, str]:
    """A folder a paper, with its name and abstract, and the captions of its pictures as JSON."""
    files = {}
    for number in range(40):
        folder = f"dataset/{('history', 'law')[number % 2]}/paper_{number}"
        parts = {
            "text": f"В этом городе {number} мостов через широкую реку.",
            "abstract": "Мосты города.",
            "name": "Мосты",
        }
        files |= {f"{folder}/{name}.txt": content for name, content in parts.items()}
        files |= (
            {f"{folder}/tables.json": '{"table_1": "Мосты"}', f"{folder}/table_1.png": "\x89PNG"} if number == 3 else {}
        )
    return files


SETS = {  # the files, the clusters of each split, and the documents and summaries of a cluster
    "Opinosis": (opinosis, {"train": 5}, 1, 2),
    "FewSum": (fewsum, SPLITS, 8, 3),
    "SciTLDR": (scitldr, SPLITS, 1, 2),
    "QMSum": (qmsum, {name: 2 * count for name, count in SPLITS.items()}, 1, 1),
    "DialogSum": (dialogsum, SPLITS, 1, 3),
    "DUC 2004": (duc, {"train": 3}, 2, 2),
    "MultiLing": (multiling, {"train": 4}, 2, 2),
    "Multi-News": (multi_news, SPLITS, 2, 1),
    "WCEP": (wcep, SPLITS, 2, 1),
    "WikiHow": (wikihow, {"train": 8, "valid": 1, "test": 1}, 1, 1),
    "ACI-Bench": (aci_bench, {"train": 2, "valid": 2, "test": 6}, 1, 1),
    "BBC News Summary": (bbc_news, SPLITS, 1, 1),
    "Contracts in plain English": (contracts, {"train": 9}, 1, 1),
    "ConvoSumm": (convosumm, SPLITS, 1, 1),
    "CRD3": (crd3, {"train": 6}, 2, 1),
    "MeQSum": (meqsum, {"train": 11}, 1, 1),
    "MTS-Dialog": (mts_dialog, SPLITS, 1, 1),
    "SumPubMed": (sumpubmed, {"train": 11}, 1, 1),
    "AESLC": (aeslc, SPLITS, 1, 3),
    "Multi-News+": (multi_news_plus, SPLITS, 2, 1),
    "Papers in Russian": (papers_in_russian, {"train": 36, "valid": 2, "test": 2}, 1, 1),
}


def arguments(command: str) -> list[str]:
    """Return the words of a command; the shell's braces and stars stand for several words."""
    words = []
    for word in shlex.split(command):
        found = re.fullmatch(r"(.*)\{(.*)\}(.*)", word)
        words += [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")] if found else [word]
    return [path for word in words for path in (sorted(glob.glob(word)) if word.endswith("*/") else [word])]


def test_every_command_is_tested():
    assert COMMANDS.keys() == SETS.keys()


@pytest.mark.parametrize("name", SETS)
def test_a_published_dataset_is_read_by_its_command(tmp_path, monkeypatch, capsys, name):
    files, counts, documents, summaries = SETS[name]
    for path, content in files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["raysum", *arguments(COMMANDS[name]), "--out", "prepared", "--vocab-size", "80"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    dataset = Dataset.open("prepared")
    assert {split: dataset.rows(split) for split in dataset.splits} == counts
    assert dataset.manifest["rejected"] == {} and dataset.manifest["words_kept"] > 0.9
    row = next(dataset.read("test" if "test" in counts else "train"))
    assert len({*row["document"]}) == documents and len(references(row)) == summaries
