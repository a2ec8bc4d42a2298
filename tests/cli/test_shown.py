"""What people are shown of results: whole numbers and names, in a terminal of any width and in a file."""

import io
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Group

from raysum.cli.commands import data_show
from raysum.cli.options import print_result
from raysum.evaluate.table import Evaluation
from raysum.runs.folder import Run
from raysum.runtime.rendering import Grid
from raysum.tune.results import SearchResult, Trial
from raysum.tune.spaces import load_space

_SYSTEMS = ("papers", "papers+extractor", "lead", "lexrank", "mmr", "oracle")
_FIGURES = {"rouge1": 29.44, "cited_precision": 61.2, "cited_recall": 48.7, "novel1": 12.3, "density": 4.56}


def evaluation() -> Evaluation:
    known = {
        system: {
            name + end: value + number + spread
            for name, value in _FIGURES.items()
            for end, spread in (("", 0), ("_low", -15.25), ("_high", 15.25))
        }
        for number, system in enumerate(_SYSTEMS)
    }
    return Evaluation(known, {}, "google", 7, pd.DataFrame({"system": []}))


@pytest.mark.parametrize("width", [30, 80])
def test_a_narrow_terminal_cuts_no_number_and_no_label(width):
    from rich.console import Console

    printed = io.StringIO()
    Console(file=printed, width=width, soft_wrap=True).print(evaluation().render())
    text = printed.getvalue()
    assert all(f"{29.44 + number:.2f} ±15.25" in text for number in range(len(_SYSTEMS)))
    assert all(f"{12.3 + number:.1f}" in text for number in range(len(_SYSTEMS)))
    assert {"as the teacher P", "as the teacher R"} <= {line[:16] for line in text.splitlines()}
    table = text.partition("% of n-grams")[0]  # what stands after it are lines of text
    assert max(map(len, table.splitlines())) <= max(width, 16 + 2 + len("papers+extractor"))


def test_a_file_has_no_width(capsys, tmp_path):
    print_result(evaluation(), False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [*_SYSTEMS]
    assert sum(line.count("±15.25") for line in lines if line.startswith("ROUGE-1")) == len(_SYSTEMS)

    trials = [Trial("beta=0.4", {"decode.beta": 0.4}, {"rouge2": 8.25, "parameters": 23_000_000.0}, 1.0)]
    trials.append(Trial("beta=0.8", {"decode.beta": 0.8}, {}, 0.0, "a cause " * 20))
    print_result(SearchResult(load_space("beta").config, trials, Run(tmp_path), 1.0), False)
    text = capsys.readouterr().out
    assert "23,000,000" in text and "a cause " * 20 in text


def test_texts_move_no_cursor_and_are_printed_as_they_are(capsys):
    """Also in tables and in groups of texts and tables."""
    harm, kept = "\x1b[31mred \x1b]0;title\x07 \x9b2J \u202eback", "[bold]no markup[/bold] :apple: 0.5"
    grid = Grid("name", "value")
    grid.add_row(harm, kept)
    for rendered in (f"{harm}{kept}", grid, Group(f"{harm}{kept}", grid)):
        print_result(SimpleNamespace(render=lambda rendered=rendered: rendered), False)
        printed = capsys.readouterr().out
        assert kept in printed and "\\x1b[31mred" in printed
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*printed}


def test_a_drawing_is_told(capsys, tmp_path):
    from helpers.small_datasets import write_dataset

    write_dataset(tmp_path / "data", {"train": 8})
    data_show(str(tmp_path / "data"), str(tmp_path / "lengths.png"))
    assert (tmp_path / "lengths.png").is_file() and str(tmp_path / "lengths.png") in capsys.readouterr().err
