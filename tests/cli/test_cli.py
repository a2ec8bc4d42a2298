"""The command line: mistakes are one message on stderr and exit code 2; results go to stdout."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from helpers.small_datasets import write_dataset
from raysum.cli.app import app, main
from raysum.errors import UserError


def raysum(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raysum", *arguments], capture_output=True, text=True)


def printed(monkeypatch, capsys, option: str) -> str:
    monkeypatch.setattr(sys, "argv", ["raysum", option])
    with pytest.raises(SystemExit, match="0"):
        main()
    return capsys.readouterr().out


def test_help_has_the_commands_in_groups_and_the_first_steps_first(capsys, monkeypatch):
    shown = printed(monkeypatch, capsys, "--help")
    commands = re.findall(r"^│ ([a-z]+) ", shown, re.MULTILINE)
    assert commands[:3] == ["quickstart", "prepare", "train"]
    assert sorted(commands) == sorted(name.name for name in (*app.registered_commands, *app.registered_groups))
    assert re.findall(r"^╭─ (\w+)", shown, re.MULTILINE) == ["Options", "Start", "Use", "Search", "Data", "Other"]
    assert printed(monkeypatch, capsys, "--version") == f"raysum {version('raysum')}\n"


MISTAKES = [
    ("prepare none.jsonl --out data", "none.jsonl"),
    ("prepare empty.jsonl --out data", "empty.jsonl"),
    ("prepare empty.jsonl --out data --ranker bm25", "ranker"),
    ("prepare empty.jsonl --out data --graph topic", "graph"),
    ("prepare empty.jsonl --out data --min-words 0", "min_words"),
    ("prepare empty.jsonl --out data --clone-recall 2", "clone_recall"),
    ("prepare empty.jsonl --out data --normalize upper", "normalize"),
    ("prepare own.jsonl --out ./own.jsonl", "own.jsonl is a source; choose another --out"),
    ("prepare sheet.xlsx --out data", "sheet.xlsx cannot be read as a spreadsheet"),
    ("prepare note.txt --out data", "note.txt is one document; put the documents of each cluster into a folder"),
    ("import opennmt empty.jsonl --out run --vocab empty.jsonl", "hiersumm, wiki_sum"),
    ("import hiersumm none.pt --out run --vocab none.model", "none.model"),
    ("data show none", "no dataset none"),
    (f"data show {'x' * 300}", "too long a name"),
    ("train pht", "training needs data="),
    ("train pht data=none out=run", "no dataset none"),
    ("train pht data=none out=run train.stpes=3", "did you mean 'train.steps'?"),
    ("train pht data=none out=run model.dim=64", "unknown key 'model.dim'"),
    ("train pht data=none out=run source.size=64", "the keys of source are max_paragraphs"),
    ("train phtt data=none out=run", "did you mean 'pht'?"),
    ("train alignment data=none run=none", "none"),
    ("train ranker data=none out=run", "no dataset none"),
    ("train published data=none out=run", "import it with `raysum import huggingface published --out"),
    (f"train pht data={'x' * 5000} out=run", "too long a name"),
    ("tune betta data=none out=search", "beta"),
    ("evaluate none --data none", "none"),
    ("evaluate lexrank --data none --set wrods=9", "no dataset none"),
    ("evaluate data=x", "RUN|SEARCH|SYSTEM is missing: data=x"),
    ("evaluate none --data none scorers=[]", "scorers"),
    ("evaluate none --data ''", "data: is empty"),
    ("evaluate lexrank data=made split=test terms=true", "terms is for trained runs, and lexrank is not trained"),
    ("evaluate lexrank data=made split=test checkpoints=3", "checkpoints is for trained runs"),
    ("evaluate lexrank data=made split=test out=made", "made is a dataset; choose another --out"),
    ("evaluate lexrank data=made split=test out=note.txt", "note.txt is a file; choose another --out"),
    ("evaluate lexrank data=made split=test out=trained", "trained is a run; choose another --out"),
    ("evaluate lexrank data=made split=test out=/proc/x", "cannot write /proc/x: No such file or directory"),
    ("evaluate lexrank data=made split=test out=file/new", "cannot write file/new: Not a directory"),
    ("summarize none empty.jsonl", "empty.jsonl"),
    ("summarize none --set beta empty.jsonl", "--set beta is not KEY=VALUE; write for example --set words=44"),
    ("summarize lexrnk file", "did you mean 'lexrank'?"),
    ("summarize none file --words 9", "no run folder none"),
    ("summarize oracle file", "cluster 'file' cannot be summarized"),
    ("summarize lead file max_lenght=3", "did you mean 'max_length'?"),
    ("summarize lead file source.max_tokens=9", "did you mean 'source_tokens'?"),
    ("summarize published file", "import it with `raysum import huggingface published --out RUN`"),
    ("serve none", "no run folder none"),
    ("serve a=", "run: has no model a=: write RUN or NAME=RUN"),
    ("serve =run lead", "run: has no model =run: write RUN or NAME=RUN"),
    ("human sheets file --out x", "--design is missing: what judges do: best-worst, pairwise"),
    ("reproduce pht-1 out=x", "--data is missing: raw clusters"),
    ("reproduce data=x out=y", "TABLE[,TABLE...]|all is missing: data=x is a setting, and comes after it (Tab"),
    ("compare lead lexrank", "`raysum evaluate lead --out FOLDER` saves its results"),
    ("quickstart --out file", "file exists already"),
    ("config show ''", "PRESET|FILE is empty"),
    ("prepare '' --out data", "SOURCE... is empty; give a value (JSONL"),
    ("report '' --out page.html", "RUN|SEARCH|EVALUATION... is empty"),
    ("summarize lexrank own.jsonl ''", "[FILE]... is empty"),
    ("report made --out ''", "--out is empty; give a value (HTML file to write.)"),
    ("data show made --plot ''", "--plot is empty; give a value, or leave it out ("),
    ("compare file --metrics ''", "--metrics is empty"),
    ("import hiersumm file --out '' --vocab file", "--out is empty"),
    ("quickstart --out ''", "--out is empty"),
    ("keys list --file ''", "--file is empty"),
    ("export huggingface run --out ''", "--out is empty; give a value ("),
    ("human analyze ''", "FOLDER is empty"),
    ("config show empty.jsonl", "empty.jsonl is empty: it must be a mapping of sections"),
    ("prepare own.jsonl --out data --vocab file", "file is not a SentencePiece model"),
    (
        "prepare own.jsonl --out data --vocab /dev/zero",
        "cannot read the vocabulary /dev/zero: it is not a regular file",
    ),
    ("import hiersumm /dev/zero --out run --vocab made", "cannot read /dev/zero: it is not a regular file"),
    ("config show pht model.decoder=PQ", "letters F, P, V"),
    ("config show pht deepspeed.gradient_cliping=1", "did you mean 'gradient_clipping'?"),
    ("config show pht deepspeed.gradient_clipping=much", "gradient_clipping: must be a number"),
    ("config show pht deepspeed.zero_optimization.stage=9", "stage: Input should be 0, 1, 2 or 3 (got 9)\n"),
    ("config show pht deepspeed.zero_optimization.stge=1", "zero_optimization.stge'; did you mean 'stage'"),
    ("config show pht deepspeed.bf16.enabled=maybe", "bf16.enabled: Input should be a valid boolean"),
    ("config show pht deepspeed.zero_optimization=3", "deepspeed.zero_optimization: must be a section"),
    ("config show pht deepspeed.communication_data_type=x", "deepspeed.communication_data_type: Inv"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with bad sources, a document, a published model, and the dataset ``made``."""
    folder = tmp_path_factory.mktemp("folder")
    files = {"empty.jsonl": "", "file": "", "own.jsonl": '{"documents": ["A text."]}', "sheet.xlsx": "PK\3\4"}
    files |= {
        "note.txt": "One sentence is here. Another one stands there.",
        "published/config.json": "{}",
        "trained/config.yaml": "",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    write_dataset(folder / "made", {"test": 2})
    return folder


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_mistakes_are_one_message_with_a_way_out_and_exit_2(folder, tmp_path, monkeypatch, capsys, command, words):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["raysum", *shlex.split(command)])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    assert end.value.code == 2, told.err
    assert "Traceback" not in told.err and told.out == ""
    assert words in told.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("long", ["word " * 40_000, "w" * 200_000, "w\n" * 5])
def test_a_long_title_or_id_is_shortened_before_the_remedy(long):
    message = str(UserError(f"the cluster {long} has no text; leave it out"))
    assert len(message) < 1500 and message.startswith("the cluster w") and message.endswith("no text; leave it out")


def test_summarize_reads_standard_input_if_no_file_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "raysum", "summarize", "lead"],
        input="The Elbe rises in the old valley near the town.",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "  The Elbe rises in the old valley near the town. [1]\n" in done.stdout


def test_config_show_prints_the_resolved_config_and_its_size():
    shown = json.loads(raysum("config", "show", "ht-code", "--json").stdout)
    assert shown["parameters"] == 15_343_952
    assert shown["model"]["encoder"] == "LLLLLLGG"


@pytest.mark.parametrize(("verb", "default"), [("teach", "1000"), ("prepare", "0.1"), ("serve", "8000")])
def test_help_shows_defaults(verb, default):
    shown = raysum(verb, "--help").stdout
    assert f"[default: {default}]" in " ".join(shown.replace("│", " ").split())


def test_help_loads_no_heavy_module():
    command = [sys.executable, "-X", "importtime", "-m", "raysum", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "quickstart" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "raysum.cli.app" in loaded
    assert not {"torch", "ray", "deepspeed", "pandas", "pyarrow"} & loaded


INTERRUPT = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}: raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["raysum", "config", "list"]
runpy.run_module("raysum", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["typer", "raysum.cli.options", "pydantic"])
def test_an_interrupt_while_the_command_line_loads_is_one_line(module):
    code = INTERRUPT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (130, "raysum: stopped\n", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("raysum tr", {"train"}),
        ("raysum prepare --vocab-s", {"--vocab-size"}),
        ("raysum train hibert", {"hibert_m", "hibert_s_pretraining"}),
        ("raysum config show ht-g", {"ht-graph"}),
        ("raysum tune be", {"beta", "beta_continuous"}),
    ],
)
def test_the_shell_completes_commands_options_and_names(words, offered):
    typed = {"_RAYSUM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [str(Path(sys.executable).with_name("raysum"))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **typed}, timeout=60, check=False)
    assert offered <= set(done.stdout.split()), done.stderr
