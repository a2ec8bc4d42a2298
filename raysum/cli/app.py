"""The command line: one short function a verb. Each parses, calls one room, and returns what is printed."""

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
from raysum.cli.checkpoints import export_checkpoint, import_checkpoint
from raysum.cli.configs import config_app
from raysum.cli.datasets import data_app
from raysum.cli.human import human_app
from raysum.cli.options import Overrides, verb
from raysum.cli.tables import list_tables
from raysum.cli.teaching import add_teach
from raysum.config.sections import LoadConfig
from raysum.errors import UserError, check_no_password
from raysum.evaluate.config import EvaluateConfig
from raysum.prepare.config import PrepareConfig, Shaped
from raysum.report.board.config import BoardConfig
from raysum.research.reproduce.config import ReproduceConfig
from raysum.runtime.remote import as_named
from raysum.runtime.streams import open_streams
from raysum.serve.config import ServeConfig

_PANELS = {
    "Start": ("quickstart", "prepare", "train"),
    "Use what is trained": ("evaluate", "summarize", "serve"),
    "Search and compare": ("tune", "compare", "report", "board", "human"),
    "Data and configurations": ("data", "config", "teach"),
    "Other models, papers and measurements": ("import", "export", "reproduce", "bench"),
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
app.add_typer(human_app, name="human")
add_teach(app)


def _print_version(asked: bool) -> None:
    if asked:
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
    """Run the command line: exit code 2 and one message for a mistake of the user's; SIGTERM ends it as Ctrl-C does,
    and so does a terminal that is closed, but under nohup."""
    open_streams()
    terminated: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def terminate(number: int, frame: Any) -> None:
        terminated.append(number)
        if number == signal.SIGHUP:  # what is written to a closed terminal raises an error
            _silence(*terminals)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)
    try:
        try:
            given = [arg for before, arg in pairwise(sys.argv) if before != "--teacher"]  # whose server may ask for one
            check_no_password(" ".join(given))
            app()
        finally:
            sys.stdout.flush()
    except UserError as error:
        _refuse(str(error))
    except BrokenPipeError:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read it has read enough, such as head
            _silence(1)
            sys.exit(1)
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            told = f"{str(error.filename)[:60]}... is too long a name for a file"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            told = f"cannot write {error.filename or 'what the command prints'}: {error.strerror}; free space there"
            _silence(1)  # Python would try once more at its end
        else:
            raise
        _refuse(told)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        _refuse("not enough memory for that; ask for fewer beams, shorter texts or smaller batches")
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C
            print("raysum: stopped", file=sys.stderr)
            sys.exit(128 + terminated[0] if terminated else 130)
        raise


def _silence(*streams: int) -> None:
    """What this process writes to these numbers of open files is thrown away."""
    with open(os.devnull, "wb") as nowhere:
        for stream in streams:
            os.dup2(nowhere.fileno(), stream)


def _refuse(told: str) -> NoReturn:
    print(f"raysum: {as_named(told)}", file=sys.stderr)
    sys.exit(2)


@verb(app)
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder to write: corpus, dataset, run, search.")],
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of the preset's.", min=1)] = None,
    clusters: Annotated[int, typer.Option(help="Training clusters to generate.", min=64)] = 16000,
) -> Any:
    """The whole way on a generated corpus: prepare, train PHT, align, search beta, evaluate, summarize."""
    from raysum.quickstart import quickstart as run

    return run(out, steps=steps, clusters=clusters)


@verb(app, PrepareConfig)
def prepare(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="JSONL[.gz], CSV, Parquet, folders, or URLs of such.")
    ],
    settings: PrepareConfig,
) -> Any:
    """Raw clusters to a dataset: paragraphs, ranking, tokens, shards."""
    from raysum.prepare.job import prepare as run

    return run(sources, **settings.model_dump())


@verb(app)
def train(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET|FILE|RUN", help="What to train; a run's model begins with its weights.")
    ],
    overrides: Overrides = None,
) -> Any:
    """Train a preset on data=DATA into out=RUN; the same command resumes. `alignment run=RUN` trains the predictor.

    `auto train.minutes=30` chooses size, batches and steps from the data and this machine's speed, and compares."""
    from raysum.train.fit import train as run

    return run(preset, *(overrides or []))


@verb(app)
def tune(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="Name or file of a search space.")],
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
    """Decode a split and score it beside Lead and LexRank; of a ranker and its data: what its best paragraphs hold."""
    from raysum.evaluate.evaluation import evaluate as run

    return run(target, **settings.model_dump())


@verb(app)
def compare(
    evaluations: Annotated[
        list[str], typer.Argument(metavar="RUN|EVALUATION...", help="Runs, or folders that `raysum evaluate` wrote.")
    ],
    metrics: Annotated[
        list[str] | None, typer.Option(help="A figure to compare, such as novel2; may be given several times.")
    ] = None,
) -> Any:
    """Differences between evaluated systems, with paired bootstrap intervals and p-values. No model is loaded."""
    from raysum.evaluate.comparison import compare as run

    return run(*evaluations, metrics=metrics)


@verb(app)
def report(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|SEARCH|EVALUATION...", help="Folders to tell of.")],
    out: Annotated[str, typer.Option(help="HTML file to write.")],
) -> Any:
    """One page of runs, searches and evaluations: curves, tables, examples. It opens without a network."""
    from raysum.report.writing import report as run

    return run(paths, out)


@verb(app, BoardConfig)
def board(
    folder: Annotated[str, typer.Argument(help="Where the runs and searches are.")],
    settings: BoardConfig,
) -> None:
    """Show all runs and searches in a folder in the browser, and follow those that go on, until stopped."""
    from raysum.report.board.app import board as show

    show(**settings.model_dump())


@verb(app, ReproduceConfig)
def reproduce(
    tables: Annotated[str, typer.Argument(metavar="TABLE[,TABLE...]|all", help="Tables, as --list names them.")],
    *,
    tell: Annotated[
        bool, typer.Option("--list", callback=list_tables, is_eager=True, help="The tables, and how long each takes.")
    ] = False,
    settings: ReproduceConfig,
) -> Any:
    """The tables of the four papers on data=RAW, each row by a system that is trained here, into out=FOLDER."""
    from raysum.research.reproduce.job import reproduce as run

    return run(tables, **settings.model_dump())


class _SummarizeConfig(LoadConfig, Shaped):
    title: str = Field("", description="title, where the files are texts of one cluster")
    words: int | None = Field(
        None, description="words of a summary by what extracts: lexrank, lead, mmr, oracle, or such a run"
    )
    html: str | None = Field(None, description="file to write besides: a page of the summaries and their sources")


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

    A cluster that cannot be summarized has its error in the place of its summary, and the exit status is then 2.
    """
    from raysum.cli.clusters import given_clusters
    from raysum.decode.page import page
    from raysum.decode.summary import NoSummary, Summaries
    from raysum.extract.loading import summarizer_of
    from raysum.runtime.storage import write_page

    given = given_clusters(files or ["-"], settings.title, settings.mapping)
    clusters = [one for one in given if not isinstance(one, NoSummary)]
    length = {} if settings.words is None else {"words": settings.words}
    summarizer = summarizer_of(run, settings.model_copy(update={"decode": settings.decode | length}))
    found = summarizer.summarize_each(clusters, progress=len(clusters) > 1)
    made = [(one, raw) for one, raw in zip(found, clusters, strict=True) if not isinstance(one, NoSummary)]
    if settings.html and made:
        write_page(Path(settings.html), page(*map(list, zip(*made, strict=True))), "--html")
    left = iter(found)
    whole = [one if isinstance(one, NoSummary) else next(left) for one in given]
    if len(whole) == 1 and isinstance(whole[0], NoSummary):
        raise UserError(whole[0].error)
    return Summaries(whole)


@verb(app, ServeConfig)
def serve(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|SEARCH|SYSTEM", help="A run, a search: its best, or lexrank, lead, mmr."),
    ],
    settings: ServeConfig,
) -> None:
    """Host the best checkpoint over HTTP until stopped."""
    from raysum.serve.app import serve as host

    host(**settings.model_dump())


verb(app, name="import")(import_checkpoint)
verb(app, name="export")(export_checkpoint)


@verb(app)
def bench(
    name: Annotated[str, typer.Argument(help="train, decode, stream, rouge or start.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as presets=[ht,pht] threads=2.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="A,B", help="Other tools to measure beside ours.")] = None,
) -> Any:
    """Measure speed and memory beside what this machine can do at most."""
    from raysum.bench.registry import bench as run

    return run(name, [*(settings or []), *([f"against=[{against}]"] if against else [])])


def _group_commands() -> None:
    """Order the commands as `raysum --help` shows them, in panels."""
    places = {name: (number, panel) for number, (panel, names) in enumerate(_PANELS.items()) for name in names}
    commands: list[Any] = [*app.registered_commands, *app.registered_groups]
    for command in commands:
        command.rich_help_panel = places[command.name][1]
    app.registered_commands.sort(key=lambda command: places[str(command.name)][0])


_group_commands()
