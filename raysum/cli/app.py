"""The command line: one short function for each command. It parses, calls one package, and returns the result."""

import errno
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import Field

from raysum import __version__
from raysum.cli.groups import config_app, data_app, human_app
from raysum.cli.options import Overrides, completed_by, print_result, verb
from raysum.config.loading import presets
from raysum.config.sections import LoadConfig
from raysum.errors import UserError, check_no_password
from raysum.evaluate.config import EvaluateConfig
from raysum.prepare.config import PrepareConfig, Shaped
from raysum.report.board.config import BoardConfig
from raysum.research.reproduce.config import ReproduceConfig
from raysum.runtime.remote import as_named
from raysum.runtime.streams import open_streams
from raysum.serve.config import ServeConfig
from raysum.teach.config import TeachConfig

_PANELS = {
    "Start": ("quickstart", "prepare", "train"),
    "Use what is trained": ("evaluate", "summarize", "serve"),
    "Search and compare": ("tune", "compare", "status", "report", "board", "human"),
    "Data and configurations": ("data", "config", "teach"),
    "Other models, papers and measurements": ("import", "export", "reproduce", "bench"),
}

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
app.add_typer(human_app, name="human")


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"raysum {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, tune and serve hierarchical multi-document summarizers on Ray."""


def main() -> None:
    """Run the command line. A user error prints one message and returns exit code 2.

    SIGTERM and closing the terminal (except under nohup) end it as Ctrl-C does.
    """
    open_streams()
    terminated: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def terminate(number: int, frame: Any) -> None:
        terminated.append(number)
        if number == signal.SIGHUP:  # writing to a closed terminal raises an error
            _silence(*terminals)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)
    try:
        try:
            # A teacher may need a password in its URL.
            arguments = [argument for before, argument in pairwise(sys.argv) if before != "--teacher"]
            check_no_password(" ".join(arguments))
            app()
        finally:
            sys.stdout.flush()
    except UserError as error:
        _refuse(str(error))
    except BrokenPipeError:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # a reader such as head has closed the pipe
            _silence(1)
            sys.exit(1)
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            message = f"{str(error.filename)[:60]}... is too long a name for a file"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = (
                f"cannot write {error.filename or 'the output of the command'}: {error.strerror}; free space there"
            )
            _silence(1)  # Python flushes again at exit
        else:
            raise
        _refuse(message)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        _refuse("not enough memory; use fewer beams, shorter texts or smaller batches")
    except SystemExit as end:
        if end.code == 130:  # typer's code for Ctrl-C
            print("raysum: stopped", file=sys.stderr)
            sys.exit(128 + terminated[0] if terminated else 130)
        raise


def _silence(*streams: int) -> None:
    """Discard what this process writes to these file descriptors."""
    with open(os.devnull, "wb") as null:
        for stream in streams:
            os.dup2(null.fileno(), stream)


def _refuse(message: str) -> NoReturn:
    print(f"raysum: {as_named(message)}", file=sys.stderr)
    sys.exit(2)


@verb(app)
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder to write: corpus, dataset, run, search.")],
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of the preset's.", min=1)] = None,
    clusters: Annotated[int, typer.Option(help="Training clusters to generate.", min=64)] = 16000,
) -> Any:
    """Run all steps on a generated corpus: prepare, train PHT, align, search beta, evaluate, summarize."""
    from raysum.quickstart import quickstart as run

    return run(out, steps=steps, clusters=clusters)


@verb(app, PrepareConfig)
def prepare(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="JSONL[.gz], CSV, Parquet, folders, or their URLs.")
    ],
    settings: PrepareConfig,
) -> Any:
    """Turn raw clusters into a dataset: paragraphs, ranking, tokens, shards."""
    from raysum.prepare.job import prepare as run

    return run(sources, **settings.model_dump())


@verb(app)
def train(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE|RUN",
            help="Config to train; RUN also provides the initial weights.",
            autocompletion=completed_by(presets),
        ),
    ],
    overrides: Overrides = None,
) -> Any:
    """Train a preset on data=DATA into out=RUN; the same command resumes.

    `alignment run=RUN` trains the attention predictor. `auto train.minutes=30` chooses size, batches and steps from the
    data and this machine's speed, and compares the result with other systems."""
    from raysum.train.fit import train as run

    return run(preset, *(overrides or []))


def _spaces() -> list[str]:
    from raysum.tune.spaces import spaces

    return spaces()


@verb(app)
def tune(
    space: Annotated[
        str,
        typer.Argument(metavar="SPACE", help="Name or file of a search space.", autocompletion=completed_by(_spaces)),
    ],
    overrides: Overrides = None,
) -> Any:
    """Search a space with Ray Tune: data=DATA out=SEARCH, and run=RUN for decoding spaces."""
    from raysum.tune.search import tune as run

    return run(space, *(overrides or []))


@verb(app, EvaluateConfig)
def evaluate(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|SEARCH|SYSTEM", help="A run, a search, lead, lexrank, mmr, oracle, or lead-paper."),
    ],
    settings: EvaluateConfig,
) -> Any:
    """Decode a split and score it with Lead and LexRank. For a ranker: measure the content of its best paragraphs."""
    from raysum.evaluate.evaluation import evaluate as run

    return run(target, **settings.model_dump())


@verb(app)
def compare(
    evaluations: Annotated[
        list[str], typer.Argument(metavar="RUN|EVALUATION...", help="Runs, or folders that `raysum evaluate` wrote.")
    ],
    metrics: Annotated[
        list[str] | None, typer.Option(help="Metric to compare, such as novel2; can be repeated.")
    ] = None,
) -> Any:
    """Compare evaluated systems with paired bootstrap intervals and p-values. No model is loaded."""
    from raysum.evaluate.comparison import compare as run

    return run(*evaluations, metrics=metrics)


@verb(app)
def report(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|SEARCH|EVALUATION...", help="Folders to report on.")],
    out: Annotated[str, typer.Option(help="HTML file to write.")],
) -> Any:
    """Write a page about runs, searches and evaluations: curves, tables, examples. It opens offline."""
    from raysum.report.writing import report as run

    return run(paths, out)


@verb(app)
def status(
    path: Annotated[str, typer.Argument(metavar="RUN|SEARCH", help="Folder or URL of a run or a search.")],
) -> Any:
    """Show the state of a run or a search: step, speed, remaining time, hosts, last checkpoint, last failure."""
    from raysum.report.status import status as run

    return run(path)


@verb(app, BoardConfig)
def board(
    folder: Annotated[str, typer.Argument(help="Folder with the runs and searches.")],
    settings: BoardConfig,
) -> None:
    """Show all runs and searches of a folder in the browser, and update the running ones, until stopped."""
    from raysum.report.board.app import board as show

    show(**settings.model_dump())


def _list_tables(is_set: bool) -> None:
    """Print the papers' tables and end, before other arguments are checked."""
    if is_set:
        from raysum.research.reproduce.rendering import ListedFigures
        from raysum.research.reproduce.tables import ALL, chosen

        print_result(ListedFigures(chosen(ALL)), "--json" in sys.argv)
        raise typer.Exit


@verb(app, ReproduceConfig)
def reproduce(
    tables: Annotated[str, typer.Argument(metavar="TABLE[,TABLE...]|all", help="Tables, named as in --list.")],
    *,
    tell: Annotated[
        bool, typer.Option("--list", callback=_list_tables, is_eager=True, help="List the tables and their run times.")
    ] = False,
    settings: ReproduceConfig,
) -> Any:
    """Reproduce the tables of the four papers on data=RAW into out=FOLDER; each row trains its system."""
    from raysum.research.reproduce.job import reproduce as run

    return run(tables, **settings.model_dump())


class _SummarizeConfig(LoadConfig, Shaped):
    title: str = Field("", description="title of the cluster, if the files are its texts")
    words: int | None = Field(
        None, description="maximum words of a summary by an extractor: lexrank, lead, mmr, oracle, or such a run"
    )
    html: str | None = Field(None, description="also write a page with the summaries and their sources to this file")


@verb(app, _SummarizeConfig)
def summarize(
    run: Annotated[
        str, typer.Argument(metavar="RUN|SEARCH|SYSTEM", help="A trained run, or lexrank, lead, mmr, oracle.")
    ],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Data files, or texts of one cluster; - is stdin.")
    ],
    settings: _SummarizeConfig,
) -> Any:
    """Summarize raw clusters from files, without a server and without Ray.

    A cluster that cannot be summarized gets an error in place of its summary, and the exit code is 2.
    """
    from raysum.cli.clusters import input_clusters
    from raysum.decode.page import summaries_page
    from raysum.decode.summary import NoSummary, Summaries
    from raysum.extract.summarizer import summarizer_of
    from raysum.runtime.storage import write_page

    rows = input_clusters(files or ["-"], settings.title, settings.mapping)
    clusters = [row for row in rows if not isinstance(row, NoSummary)]
    length = {} if settings.words is None else {"words": settings.words}
    summarizer = summarizer_of(run, settings.model_copy(update={"decode": settings.decode | length}))
    summaries = summarizer.summarize_each(clusters, progress=len(clusters) > 1)
    pairs = [
        (summary, raw) for summary, raw in zip(summaries, clusters, strict=True) if not isinstance(summary, NoSummary)
    ]
    if settings.html and pairs:
        write_page(Path(settings.html), summaries_page(*map(list, zip(*pairs, strict=True))), "--html")
    remaining = iter(summaries)
    results = [row if isinstance(row, NoSummary) else next(remaining) for row in rows]
    if len(results) == 1 and isinstance(results[0], NoSummary):
        raise UserError(results[0].error)
    return Summaries(results)


@verb(app, ServeConfig)
def serve(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|SEARCH|SYSTEM", help="A run, the best run of a search, or lexrank, lead, mmr."),
    ],
    settings: ServeConfig,
) -> None:
    """Serve the best checkpoint over HTTP until stopped."""
    from raysum.serve.app import serve as host

    host(**settings.model_dump())


@verb(app, TeachConfig)
def teach(
    clusters: Annotated[list[str], typer.Argument(metavar="CLUSTERS...", help="The same as for `raysum prepare`.")],
    settings: TeachConfig,
) -> Any:
    """Let a language model write missing summaries of clusters: JSON lines for `raysum prepare`.

    The same command resumes after a kill. The exit code is 3 if the budget is spent before the end, and 2 if too many
    answers are rejected."""
    from raysum.teach.job import teach as run

    return run(clusters, **settings.model_dump())


@verb(app, name="import")
def import_checkpoint(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="hiersumm (PyTorch), wiki_sum (TensorFlow), huggingface (pretrained)."),
    ],
    file: Annotated[str, typer.Argument(help="model_step_N.pt[.gz], the prefix ckpt-N, or a folder of huggingface.")],
    out: Annotated[str, typer.Option(help="Run folder to write.")],
    overrides: Overrides = None,
    vocab: Annotated[str | None, typer.Option(help="The SentencePiece model that it was trained with.")] = None,
    heads: Annotated[int | None, typer.Option(help="wiki_sum: attention heads; 4 as published.", min=1)] = None,
    dropout: Annotated[float | None, typer.Option(help="wiki_sum: dropout rate; 0.3 as published.")] = None,
    language: Annotated[
        str | None, typer.Option(help="huggingface: language of the texts as an mBART code, such as de_DE.")
    ] = None,
) -> Any:
    """Turn a published checkpoint into a run for summarize, evaluate and serve.

    KEY=VALUE are for huggingface: model.encoder=LGLGLG model.decoder=PPPPPP chooses the layer mix."""
    from raysum.importing.checkpoint import import_checkpoint as run

    return run(kind, file, out, vocab, heads=heads, dropout=dropout, language=language, overrides=overrides or ())


@verb(app, name="export")
def export_checkpoint(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="huggingface.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="An imported run, or one that was trained from it.")],
    out: Annotated[str, typer.Option(help="Folder to write, which transformers loads.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step.")] = "best",
) -> Any:
    """Turn a run with the layers of a pretrained model into a folder that transformers loads."""
    from raysum.importing.checkpoint import export_checkpoint as write

    return write(kind, run, out, checkpoint)


@verb(app)
def bench(
    name: Annotated[str, typer.Argument(help="decode, efficiency, prepare, rouge, start, stream or train.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings such as threads=2.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="A,B", help="Other tools to measure for comparison.")] = None,
) -> Any:
    """Measure speed and memory, and compare them with the limits of this machine."""
    from raysum.bench.registry import bench as run

    return run(name, [*(settings or []), *([f"against=[{against}]"] if against else [])])


def _group_commands() -> None:
    """Order the commands as `raysum --help` shows them, in panels."""
    panels = {name: (number, panel) for number, (panel, names) in enumerate(_PANELS.items()) for name in names}
    commands: list[Any] = [*app.registered_commands, *app.registered_groups]
    for command in commands:
        command.rich_help_panel = panels[command.name][1]
    app.registered_commands.sort(key=lambda command: panels[str(command.name)][0])


_group_commands()
