"""The README's commands, run as a user runs them: its blocks in order, on the samples."""

import json
import re

import pytest

from helpers.pretrained import published
from helpers.project import ROOT, shell
from helpers.published_tokenizers import published as tokenizer
from raysum.examples.factbook.corpus import generate
from raysum.runs.folder import Run

README = ROOT / "README.md"
SAMPLES = ROOT / "raysum" / "examples" / "samples"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def cited(stdout: str) -> int:
    """How many notes there are. Each quotes what stands in the samples at the place that it tells."""
    clusters = [json.loads(line) for line in (SAMPLES / "test.jsonl").read_text().splitlines()]
    documents = [document for cluster in clusters for document in cluster["documents"]]
    notes = re.findall(r'^    \[\d+\] (.+?), "(.+)" chars (\d+)-(\d+)$', stdout, re.MULTILINE)
    for source, quote, start, end in notes:
        cited = [one["text"][int(start) : int(end)] for one in documents if one["source"] == source]
        opening, _, ending = quote.partition(" ... ")  # of a long one
        assert any(text.startswith(opening) and text.endswith(ending) for text in cited), quote
    return len(notes)


def supports(printed):
    """What each summary says of its support; a warning may name the figure again."""
    return [int(figure) for figure in re.findall(r"^ *support (\d+) of 100$", printed, re.MULTILINE)]


def test_the_blocks_run_in_order(tmp_path):
    pages = README.read_text() + (ROOT / "docs" / "search.md").read_text()
    blocks = re.findall(r"<!-- run: (\w+) -->\n```bash\n(.*?)```", pages, re.DOTALL)
    assert [name for name, _ in blocks] == ["prepare", "train", "evaluate", "summarize", "alignment"]
    printed = {}
    for name, script in blocks:
        done = shell(script.replace("train.minutes=1", "train.minutes=0.4"), tmp_path)
        assert done.returncode == 0, f"{name}:\n{done.stderr[-3000:]}"
        printed[name] = done.stdout
        if name == "train":
            assert "44 clusters are few" in done.stderr
    named = re.search(r"(\w+) is the best choice: .*\n  raysum serve (.+)$", printed["train"], re.MULTILINE)
    assert named and f"{named[2]}`" in README.read_text()  # what the README says that it says
    assert f"summarize {named[1]} " in dict(blocks)["train"]
    assert supports(printed["train"]) == [100] * 8 and cited(printed["train"]) >= 16
    assert len(supports(printed["summarize"])) == 8 and cited(printed["summarize"]) >= 8
    run = Run(tmp_path / "runs" / "auto")
    validations = run.validations()
    assert validations[run.best().step] == min(validations.values()) < validations[min(validations)]
    table = json.loads(next(run.path.glob("evaluation/data-*/test/table.json")).read_text())
    assert table["examples"] == 8
    assert {"lead", "lexrank"} < set(table["systems"])
    assert len(json.loads((tmp_path / "runs" / "beta" / "best.json").read_text())["config"]) == 2


@pytest.mark.long
def test_the_lines_of_pretrained_models_run_in_order(tmp_path):
    """A tenth of the steps, on a narrow BART with the layers and positions of the base one, and clusters that hold more
    than it reads."""
    tokenizer(tmp_path / "bart-base", "bart")
    told = json.loads((tmp_path / "bart-base" / "config.json").read_text())
    told.pop("model_type")
    published("bart", tmp_path / "bart-base", **told, encoder_layers=6, decoder_layers=6)
    for number, raw in enumerate(generate("train", 40)):
        place = tmp_path / "papers" / f"cluster-{number}"
        place.mkdir(parents=True)
        texts = [document["text"] for document in raw["documents"]]
        (place / "all.txt").write_text("\n\n".join(" ".join(texts[i:] + texts[:i]) for i in range(len(texts))) * 3)
        (place / "title.txt").write_text(raw["title"])
        (place / "summary.txt").write_text(raw["summary"])
    block = re.search(r"```\n(.*?)```", (ROOT / "docs" / "pretrained.md").read_text(), re.DOTALL)[1]
    *lines, last = block.replace("\\\n", "").replace("train.steps=100", "train.steps=10").splitlines()
    assert last == "raysum serve runs/papers"
    done = {line.split("#")[0]: shell(line, tmp_path) for line in lines}
    for line, one in done.items():
        assert one.returncode == 0, f"{line}:\n{one.stderr[-3000:]}"
        assert "tokens are read" not in one.stderr and "passes over" not in one.stderr, line
    assert next(iter(done.values())).stdout.endswith("--max-paragraphs 16 --paragraph-tokens 254\n")
    assert (tmp_path / "for-transformers" / "model.safetensors").exists()
