"""The commands: one short function for each. It parses, calls one function of the Python API, and returns the result.

The order of the functions is that of `raysum --help`.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, model_validator
from typer import Argument, Option

import raysum
from raysum.cli.options import print_result, verb
from raysum.config.loading import load_config, presets
from raysum.config.sections import Config, LoadConfig
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.extract.parts import Outline
from raysum.prepare.config import PrepareConfig, Shaped
from raysum.report.board import BoardConfig
from raysum.research.human.designs import SheetsConfig
from raysum.research.reproduce.tables import ALL, ReproduceConfig, chosen
from raysum.runtime.progress import say
from raysum.serve.config import BatchConfig, ServeConfig, Spread
from raysum.serve.keys import FILE, KeyFile, KeyLimits, Keys, add_key, revoke_key
from raysum.teach.config import TeachConfig

_START, _USE, _SEARCH = "Start", "Use what is trained", "Search and compare"
_DATA, _OTHER = "Data and configurations", "Other models, papers and measurements"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
config_app = typer.Typer(help="Look into configurations.", no_args_is_help=True)
data_app = typer.Typer(help="Look into datasets.", no_args_is_help=True)
keys_app = typer.Typer(help="Manage the keys of a service.", no_args_is_help=True)
human_app = typer.Typer(help="Let people judge summaries, and analyze their answers.", no_args_is_help=True)
app.add_typer(keys_app, name="keys", rich_help_panel=_USE)
app.add_typer(human_app, name="human", rich_help_panel=_SEARCH)
app.add_typer(data_app, name="data", rich_help_panel=_DATA)
app.add_typer(config_app, name="config", rich_help_panel=_DATA)


def _argument(metavar: str, about: str | None = None, names: Callable[[], list[str]] = list) -> Any:
    """Return an argument that the shell completes with ``names``, and with files where no name fits."""

    def completed(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return Argument(metavar=metavar, help=about, autocompletion=completed)


def _spaces() -> list[str]:
    from raysum.tune.spaces import spaces

    return spaces()


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"raysum {raysum.__version__}")
        raise typer.Exit


_Overrides = Annotated[list[str] | None, _argument("[KEY=VALUE]...", "Config keys, such as train.steps=2000.")]
_Data = Annotated[str, Argument(help="Dataset folder.")]
_Version = Annotated[
    bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _options(version: _Version = False) -> None:
    """Train, tune and serve hierarchical multi-document summarizers on Ray."""


@verb(app, panel=_START)
def quickstart(
    out: Annotated[str, Option(help="Folder to write: corpus, dataset, run, search.")],
    steps: Annotated[int | None, Option(help="Training steps, instead of the preset's.", min=1)] = None,
    clusters: Annotated[int, Option(help="Training clusters to generate.", min=64)] = 16000,
) -> Any:
    """Run all steps on a generated corpus: prepare, train PHT, align, search beta, evaluate, summarize."""
    from raysum.quickstart import quickstart as run

    return run(Path(out), steps=steps, clusters=clusters)


class PrepareOptions(PrepareConfig):
    out: str = Field("", description="dataset folder to write")
    dry_run: bool = Field(False, description="only report what the sources hold, and the command that reads them")

    @model_validator(mode="after")
    def _check_out(self) -> "PrepareOptions":
        if not (self.out or self.dry_run):
            raise ValueError(f"--out is missing: {type(self).model_fields['out'].description}")
        return self


@verb(app, panel=_START)
def prepare(
    sources: Annotated[list[str], _argument("SOURCE...", "JSONL[.gz], CSV, Parquet, folders, or their URLs.")],
    settings: PrepareOptions,
) -> Any:
    """Turn raw clusters into a dataset: paragraphs, ranking, tokens, shards.

    Sources that cannot be read give the report of --dry-run, and the exit code is 2."""
    from raysum.prepare.inspection import explain_unreadable, inspect

    if settings.dry_run:
        return inspect(sources, settings)
    try:
        return raysum.prepare(sources, **settings.model_dump(exclude={"dry_run"}))
    except UserError:
        if report := explain_unreadable(sources, settings):
            say(report)
        raise


@verb(app, panel=_START)
def train(
    preset: Annotated[
        str,
        _argument(
            "PRESET|FILE|RUN", "Config to train (`raysum config list`); RUN also provides the initial weights.", presets
        ),
    ],
    overrides: _Overrides = None,
) -> Any:
    """Train a preset on data=DATA into out=RUN; the same command resumes.

    `alignment run=RUN` trains the attention predictor. `auto train.minutes=30` chooses size, batches and steps from the
    data and this machine's speed, and compares the result with other systems."""
    return raysum.train(preset, *(overrides or []))


@verb(app, panel=_USE)
def evaluate(
    target: Annotated[
        str, _argument("RUN|SEARCH|SYSTEM", "A run, a search, lead, lexrank, mmr, oracle, or lead-paper.")
    ],
    settings: EvaluateConfig,
) -> Any:
    """Decode a split and score it with Lead and LexRank. For a ranker: measure the content of its best paragraphs."""
    return raysum.evaluate(target, **settings.model_dump())


class SummarizeConfig(LoadConfig, Shaped, Spread):
    title: str = Field("", description="title of the cluster, if the files are its texts")
    words: int | None = Field(
        None, description="maximum words of a summary by an extractor: lexrank, lead, mmr, oracle, or such a run"
    )
    outline: Outline = Field(
        [],
        description="parts beside the text, or all: headline, themes, disagreements (other numbers in other documents)",
    )
    html: str | None = Field(None, description="also write a page with the summaries and their sources to this file")
    out: str | None = Field(
        None, description="folder or URL for the summaries of many clusters, by several processes on Ray"
    )
    server: str | None = Field(
        None, description="URL of a `raysum serve` that summarizes; leave out RUN. RAYSUM_KEY is its key"
    )

    @model_validator(mode="after")
    def _check_server_and_out(self) -> "SummarizeConfig":
        if self.server and self.model_fields_set & {"out", *LoadConfig.model_fields} - {"decode"}:
            raise ValueError("--server uses the model that it has loaded: leave out --out, --checkpoint and --dtype")
        if self.out and (self.html or self.title or self.outline):
            raise ValueError("--out is for many clusters: leave out --html, --title and --outline")
        if not self.out and self.model_fields_set & {*Spread.model_fields}:
            raise ValueError("--workers and --address need --out, a folder for the summaries")
        return self


@verb(app, panel=_USE)
def summarize(
    run: Annotated[str, _argument("RUN|SEARCH|SYSTEM", "A trained run, or lexrank, lead, mmr, oracle.")],
    settings: SummarizeConfig,
    files: Annotated[
        list[str] | None,
        _argument(
            "[FILE]...", "Data files, folders of clusters or documents, or texts of one cluster; - or none is stdin."
        ),
    ] = None,
) -> Any:
    """Summarize raw clusters from files: print the summaries, or write those of many clusters to --out on Ray.

    With --server, a running server summarizes, and all arguments are files. A cluster that cannot be summarized gets an
    error in place of its summary, and the exit code is 2.
    """
    from raysum.cli.clusters import Output, input_clusters, summarize_clusters, summarizer_in
    from raysum.extract.summarizer import extracts

    length = {} if settings.words is None else {"words": settings.words}
    output = Output(settings.outline, settings.html, settings.server or run)
    if settings.server:
        if extracts(run):
            raise UserError(
                f"the server has its own model: leave out {run}, or choose one of several by --set model=NAME"
            )
        from raysum.serve.remote_summaries import summarize_on_server

        clusters = input_clusters([run, *(files or [])], settings.title, settings.mapping)
        on_server = partial(summarize_on_server, settings.server, options=settings.decode | length)
        return summarize_clusters(clusters, on_server, output)
    if settings.out:
        values = settings.model_dump(include={*BatchConfig.model_fields} - {"run"})
        return raysum.summarize_files(run, files or [], **values | {"decode": settings.decode | length})
    loading = settings.model_copy(update={"decode": settings.decode | length})
    if not files and sys.stdin.isatty():
        raise UserError("FILE is missing: name data files or texts, or pipe one to this command")
    clusters = input_clusters(files or ["-"], settings.title, settings.mapping)
    return summarize_clusters(clusters, summarizer_in(run, loading), output)


@verb(app, panel=_USE)
def serve(
    run: Annotated[
        list[str],
        _argument("[NAME=]RUN|SEARCH|SYSTEM...", "A run, the best run of a search, or lexrank, lead, mmr; or several."),
    ],
    settings: ServeConfig,
) -> None:
    """Serve the best checkpoint over HTTP until stopped, or several models: a=RUN b=SEARCH c=lexrank."""
    raysum.serve(**settings.model_dump())


_Name = Annotated[str, Argument(help="Name of the key.")]
_KeyFile = Annotated[str, Option(help="File of the keys, for `raysum serve --keys`.")]


@verb(keys_app, "add")
def keys_add(name: _Name, settings: KeyLimits, file: _KeyFile = FILE) -> None:
    """Add a key and print it. The file has only its hash, so nothing can print it again."""
    print(add_key(file, name, settings))
    say(f"{name} is added to {file}; this is the only time that its key is shown")


@verb(keys_app, "list")
def keys_list(file: _KeyFile = FILE) -> Any:
    """List the names and limits of the keys."""
    return Keys(KeyFile.read(Path(file)).keys)


@verb(keys_app, "revoke")
def keys_revoke(name: _Name, file: _KeyFile = FILE) -> None:
    """Revoke a key. Running services refuse it from now on."""
    revoke_key(file, name)
    say(f"{name} is revoked in {file}; running services refuse it from now on")


@verb(app, panel=_SEARCH)
def tune(
    space: Annotated[str, _argument("SPACE", "Name or file of a search space.", _spaces)], overrides: _Overrides = None
) -> Any:
    """Search a space with Ray Tune: data=DATA out=SEARCH, and run=RUN for decoding spaces."""
    return raysum.tune(space, *(overrides or []))


@verb(app, panel=_SEARCH)
def compare(
    evaluations: Annotated[list[str], _argument("RUN|EVALUATION...", "Runs, or folders that `raysum evaluate` wrote.")],
    metrics: Annotated[list[str] | None, Option(help="Metric to compare, such as novel2; can be repeated.")] = None,
) -> Any:
    """Compare evaluated systems with paired bootstrap intervals and p-values. No model is loaded."""
    return raysum.compare(*evaluations, metrics=metrics)


@verb(app, panel=_SEARCH)
def status(path: Annotated[str, _argument("RUN|SEARCH", "Folder or URL of a run or a search.")]) -> Any:
    """Show the state of a run or a search: step, speed, remaining time, hosts, last checkpoint, last failure."""
    return raysum.status(path)


@verb(app, panel=_SEARCH)
def report(
    paths: Annotated[list[str], _argument("RUN|SEARCH|EVALUATION...", "Folders to report on.")],
    out: Annotated[str, Option(help="HTML file to write.")],
) -> Any:
    """Write a page about runs, searches and evaluations: curves, tables, examples. It opens offline."""
    return raysum.report(paths, out)


@verb(app, panel=_SEARCH)
def board(folder: Annotated[str, Argument(help="Folder with the runs and searches.")], settings: BoardConfig) -> None:
    """Show all runs and searches of a folder in the browser, and update the running ones, until stopped."""
    from raysum.report.board import board as show

    show(**settings.model_dump())


@verb(human_app, "sheets")
def human_sheets(
    evaluations: Annotated[list[str], _argument("EVALUATION...", "Folders that raysum evaluate wrote: its --out.")],
    settings: SheetsConfig,
) -> Any:
    """Write blinded sheets for judges, as CSV and as pages that work offline."""
    return raysum.human_sheets(evaluations, **settings.model_dump())


@verb(human_app, "analyze")
def human_analyze(folder: Annotated[str, Argument(help="Folder of `human sheets`, with completed sheets.")]) -> Any:
    """Compute scores, tests and agreement from completed sheets."""
    return raysum.human_analyze(folder)


@verb(data_app, "show")
def data_show(
    data: _Data, plot: Annotated[str | None, Option(help="Draw the lengths into this file, a PNG or SVG.")] = None
) -> Any:
    """Describe a dataset: rows, lengths, languages, truncation, rejected rows, the recipe, an example."""
    from raysum.data.inspection import Card, plot_lengths

    card = Card.of(data)
    if plot:
        plot_lengths(data, plot)
        say(f"the lengths are drawn in {plot}")
    return card


@verb(data_app, "check")
def data_check(data: _Data) -> Any:
    """Read every byte of a dataset and compare it with the checksums."""
    from raysum.data.inspection import check_dataset

    return check_dataset(data)


@verb(config_app, "show")
def config_show(preset: Annotated[str, _argument("PRESET|FILE", None, presets)], overrides: _Overrides = None) -> Any:
    """Print the fully resolved config of a preset or file, and its number of parameters."""
    from raysum.config.sizes import SizedConfig
    from raysum.train.optim import check_engine_config

    config = load_config(preset, overrides or [])
    check_engine_config(config)
    return SizedConfig(preset, config)


@config_app.command("list")
def config_list() -> None:
    """Print the names of the presets."""
    print("\n".join(presets()))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the config, for editors."""
    print(json.dumps(Config.model_json_schema(), indent=2))


@verb(app, panel=_DATA)
def teach(
    clusters: Annotated[list[str], _argument("CLUSTERS...", "The same as for `raysum prepare`.")],
    settings: TeachConfig,
) -> Any:
    """Let a language model write missing summaries of clusters: JSON lines for `raysum prepare`.

    The same command resumes after a kill. The exit code is 3 if the budget is spent before the end, and 2 if too many
    answers are rejected."""
    return raysum.teach(clusters, **settings.model_dump())


@verb(app, "import", panel=_OTHER)
def import_checkpoint(
    kind: Annotated[str, _argument("KIND", "hiersumm (PyTorch), wiki_sum (TensorFlow), huggingface (pretrained).")],
    file: Annotated[str, Argument(help="model_step_N.pt[.gz], the prefix ckpt-N, or a folder of huggingface.")],
    out: Annotated[str, Option(help="Run folder to write.")],
    overrides: _Overrides = None,
    vocab: Annotated[str | None, Option(help="The SentencePiece model that it was trained with.")] = None,
    heads: Annotated[int | None, Option(help="wiki_sum: attention heads; 4 as published.", min=1)] = None,
    dropout: Annotated[float | None, Option(help="wiki_sum: dropout rate; 0.3 as published.")] = None,
    language: Annotated[str | None, Option(help="huggingface: language of the texts as an mBART code: de_DE.")] = None,
) -> Any:
    """Turn a published checkpoint into a run for summarize, evaluate and serve.

    KEY=VALUE are for huggingface: model.encoder=LGLGLG model.decoder=PPPPPP chooses the layer mix."""
    from raysum.importing.checkpoint import import_checkpoint as run

    return run(kind, file, out, vocab, heads=heads, dropout=dropout, language=language, overrides=overrides or ())


@verb(app, "export", panel=_OTHER)
def export_checkpoint(
    kind: Annotated[str, _argument("KIND", "huggingface.")],
    run: Annotated[str, _argument("RUN", "An imported run, or one that was trained from it.")],
    out: Annotated[str, Option(help="Folder to write, which transformers loads.")],
    checkpoint: Annotated[str, Option(help="best, latest, or a step.")] = "best",
) -> Any:
    """Turn a run with the layers of a pretrained model into a folder that transformers loads."""
    from raysum.importing.checkpoint import export_checkpoint as write

    return write(kind, run, out, checkpoint)


def _list_tables(is_set: bool) -> None:
    """Print the papers' tables and end, before other arguments are checked."""
    if is_set:
        from raysum.research.reproduce.rendering import ListedFigures

        print_result(ListedFigures(chosen(ALL)), "--json" in sys.argv)
        raise typer.Exit


@verb(app, panel=_OTHER)
def reproduce(
    tables: Annotated[str, _argument("TABLE[,TABLE...]|all", "Tables, named as in --list.")],
    settings: ReproduceConfig,
    list_tables: Annotated[
        bool, Option("--list", callback=_list_tables, is_eager=True, help="List the tables and their run times.")
    ] = False,
) -> Any:
    """Reproduce the tables of the four papers on data=RAW into out=FOLDER; each row trains its system."""
    return raysum.reproduce(tables, **settings.model_dump())


@verb(app, panel=_OTHER)
def bench(
    name: Annotated[
        str, Argument(help="checkpoint, decode, efficiency, gpu, prepare, rouge, serve, start, stream, train.")
    ],
    settings: Annotated[list[str] | None, _argument("[KEY=VALUE]...", "Settings: --settings lists them.")] = None,
    against: Annotated[str | None, Option(metavar="A,B", help="Other tools to measure for comparison.")] = None,
    describe: Annotated[bool, Option("--settings", help="List the settings of the benchmark instead.")] = False,
) -> Any:
    """Measure speed and memory, and compare them with the limits of this machine."""
    from raysum.bench.registry import bench as run
    from raysum.bench.registry import settings_of

    if describe:
        return settings_of(name)
    return run(name, [*(settings or []), *([f"against=[{against}]"] if against else [])])
