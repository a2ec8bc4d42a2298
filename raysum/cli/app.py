"""The command line: one short function a verb. Each parses, calls one room and prints."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from raysum.cli.options import Checkpoint, Decode, Dtype, Json, Overrides, print_result, settings_of
from raysum.errors import UserError

_INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="Train, tune and serve hierarchical multi-document summarizers on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look into datasets.", no_args_is_help=True)
config_app = typer.Typer(help="Look into configurations.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")


def main() -> None:
    """Run the command line: exit code 2 and one message for a mistake of the user's."""
    try:
        app()
    except UserError as error:
        print(f"raysum: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            print("raysum: stopped", file=sys.stderr)
        raise


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder to write: corpus, dataset, run, search.")],
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of the preset's.", min=1)] = None,
    clusters: Annotated[int, typer.Option(help="Training clusters to generate.", min=64)] = 16000,
    as_json: Json = False,
) -> None:
    """The whole way on a generated corpus: prepare, train PHT, align, search beta, evaluate, summarize."""
    from raysum.quickstart import quickstart as run_quickstart

    result = run_quickstart(out, steps=steps, clusters=clusters)
    print_result(result.to_dict() if as_json else result.render(), as_json)


@app.command()
def prepare(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="JSONL[.gz], CSV, Parquet, or folders.")],
    out: Annotated[str, typer.Option(help="Dataset folder to write.")],
    vocab: Annotated[str | None, typer.Option(help="SentencePiece model; without it one is trained.")] = None,
    pieces: Annotated[int, typer.Option(help="Pieces of a trained vocabulary.")] = 32000,
    ranker: Annotated[str, typer.Option(help="tfidf (against the title), lexrank, or none.")] = "tfidf",
    max_paragraphs: Annotated[int, typer.Option(help="Best-ranked paragraphs kept (L).")] = 40,
    paragraph_tokens: Annotated[int, typer.Option(help="Tokens kept of a paragraph (N).")] = 100,
    min_words: Annotated[int, typer.Option(help="Words of a paragraph, at least.")] = 6,
    clone_recall: Annotated[float, typer.Option(help="A paragraph above this bigram recall is a clone.")] = 0.8,
    normalize: Annotated[
        str | None, typer.Option(help="none, lower or lower-split; by default what the vocabulary needs.")
    ] = None,
    graph: Annotated[str, typer.Option(help="Edges between paragraphs: none, similarity or discourse.")] = "none",
    split: Annotated[str | None, typer.Option(help="Split of all sources, where names do not tell it.")] = None,
    valid: Annotated[float, typer.Option(help="Share of clusters of no named split held out for validation.")] = 0.0,
    test: Annotated[float, typer.Option(help="Share of clusters of no named split held out for testing.")] = 0.0,
    max_rejected: Annotated[float, typer.Option(help="Share of rows that may be rejected.")] = 0.1,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster.")] = None,
    as_json: Json = False,
) -> None:
    """Raw clusters to a dataset: paragraphs, ranking, tokens, shards."""
    from raysum.prepare.job import prepare as run_prepare

    report = run_prepare(
        sources,
        out,
        vocab=vocab,
        pieces=pieces,
        split=split,
        hold_out={name: share for name, share in (("valid", valid), ("test", test)) if share},
        max_rejected=max_rejected,
        address=address,
        ranker=ranker,
        max_paragraphs=max_paragraphs,
        paragraph_tokens=paragraph_tokens,
        min_words=min_words,
        clone_recall=clone_recall,
        normalize=normalize,
        graph=graph,
    )
    print_result(report, as_json)


@data_app.command("show")
def data_show(data: Annotated[str, typer.Argument(help="Dataset folder.")], as_json: Json = False) -> None:
    """What a dataset holds: rows, lengths, what was cut or rejected, the recipe."""
    from raysum.data.card import render, show

    card = show(data)
    print_result(card if as_json else render(card), as_json)


@app.command()
def train(
    preset: Annotated[str, typer.Argument(metavar="PRESET|FILE|alignment", help="What to train.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train a preset on data=DATA into out=RUN; the same command resumes. `alignment run=RUN` trains the predictor."""
    from raysum.config.loading import load_config

    config = load_config(preset, overrides)
    if preset == "alignment":
        from raysum.train.alignment import train_alignment

        run = train_alignment(config)
    else:
        from raysum.train.fit import train as run_train

        run = run_train(config)
    best = run.best()
    result = {"run": str(run.path), "step": best.step, "valid_loss": run.validations().get(best.step)}
    print_result(result, as_json)


@app.command()
def tune(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="Name or file of a search space.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Search a space with Ray Tune: data=DATA out=SEARCH, and run=RUN for decoding spaces."""
    from raysum.tune.search import search

    result = search(space, overrides or [])
    print_result(result.to_dict() if as_json else result.table(), as_json)


@app.command()
def evaluate(
    target: Annotated[str, typer.Argument(metavar="RUN|SEARCH|SYSTEM", help="A run, a search, lead or lexrank.")],
    data: Annotated[Path, typer.Option(help="Dataset folder.")],
    split: Annotated[str | None, typer.Option(help="Split; may be left out where there is one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examples, the first so many.")] = None,
    protocol: Annotated[str, typer.Option(help="ROUGE protocol: google, ht-paper, pht-paper, graphsum.")] = "google",
    swapped: Annotated[bool, typer.Option(help="Also the control: another cluster's sources.")] = False,
    terms: Annotated[bool, typer.Option(help="Plain, strCov, extProb and attAlign (PHT paper, Table 2).")] = False,
    checkpoint: Checkpoint = "best",
    dtype: Dtype = "fp32",
    decode: Decode = None,
    out: Annotated[Path | None, typer.Option(help="Folder for outputs; by default inside the run.")] = None,
    as_json: Json = False,
) -> None:
    """Decode a split and score it beside Lead and LexRank."""
    from raysum.evaluate.evaluation import evaluate as run_evaluate

    result = run_evaluate(
        target,
        data,
        split=split,
        limit=limit,
        protocol=protocol,
        swapped=swapped,
        terms=terms,
        checkpoint=checkpoint,
        dtype=dtype,
        decode=settings_of(decode),
        out=out,
    )
    print_result(result.to_dict() if as_json else result.table(), as_json)


@app.command()
def summarize(
    run: Annotated[str, typer.Argument(metavar="RUN|SEARCH", help="A trained run.")],
    files: Annotated[list[str] | None, typer.Argument(help="JSONL clusters, or texts of one; - is stdin.")] = None,
    title: Annotated[str, typer.Option(help="Title, where the files are texts of one cluster.")] = "",
    checkpoint: Checkpoint = "best",
    dtype: Dtype = "fp32",
    decode: Decode = None,
    as_json: Json = False,
) -> None:
    """Summarize raw clusters from files, without a server and without Ray."""
    from raysum.decode.inputs import read_clusters
    from raysum.decode.summarizer import Summarizer

    settings = settings_of(decode)
    clusters = read_clusters(files or ["-"], title)
    summarizer = Summarizer.load(run, checkpoint=checkpoint, dtype=dtype, **settings)
    for summary in summarizer.summarize_many(clusters, progress=len(clusters) > 1):
        print_result(summary.to_dict() if as_json else summary.render(), as_json)


@app.command()
def serve(
    run: Annotated[str, typer.Argument(metavar="RUN|SEARCH", help="A trained run, or a search: its best.")],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.")] = 8000,
    replicas: Annotated[int, typer.Option(help="Copies of the model.")] = 1,
    checkpoint: Checkpoint = "best",
    dtype: Dtype = "fp32",
    decode: Decode = None,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster.")] = None,
) -> None:
    """Host the best checkpoint over HTTP until stopped."""
    from raysum.serve.app import serve as run_serve

    run_serve(
        run,
        host=host,
        port=port,
        replicas=replicas,
        checkpoint=checkpoint,
        dtype=dtype,
        decode=settings_of(decode),
        address=address,
    )


@app.command("import")
def import_checkpoint(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="hiersumm (PyTorch) or wiki_sum (TensorFlow).")],
    file: Annotated[str, typer.Argument(help="model_step_N.pt[.gz], or the prefix ckpt-N.")],
    out: Annotated[str, typer.Option(help="Run folder to write.")],
    vocab: Annotated[str, typer.Option(help="The SentencePiece model that it was trained with.")],
    heads: Annotated[int | None, typer.Option(help="wiki_sum: attention heads; 4 as published.", min=1)] = None,
    dropout: Annotated[float | None, typer.Option(help="wiki_sum: dropout rate; 0.3 as published.")] = None,
    as_json: Json = False,
) -> None:
    """Turn a published checkpoint into a run that summarize, evaluate and serve take."""
    from raysum.importing.checkpoint import import_checkpoint as run_import

    run = run_import(kind, file, out, vocab, heads=heads, dropout=dropout)
    print_result({"run": str(run.path), "step": run.best().step}, as_json)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="train, decode, efficiency or curve.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as presets=[ht,pht] threads=2.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="A,B", help="Other tools to measure beside ours.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory beside what this machine can do at most."""
    from raysum.bench.registry import bench as run_bench

    result = run_bench(name, [*(settings or []), *([f"against=[{against}]"] if against else [])])
    print_result(result.to_dict() if as_json else result.table(), as_json)


@config_app.command("show")
def config_show(
    preset: Annotated[str, typer.Argument(metavar="PRESET|FILE")], overrides: Overrides = None, as_json: Json = False
) -> None:
    """The fully resolved config of a preset or file, and its number of parameters."""
    from raysum.config.loading import dump, load_config
    from raysum.models.parameters import PAPERS_MB, count_parameters, megabytes

    config = load_config(preset, overrides)
    number, trained = count_parameters(config.model), megabytes(config.model, moments=True)
    if as_json:
        sizes = {"parameters": number, "parameters_mb": megabytes(config.model), "paper_mb": PAPERS_MB.get(preset)}
        print_result(config.model_dump(mode="json") | sizes, as_json)
        return
    print(f"# {number:,} parameters: {megabytes(config.model):.1f} MB in fp32, {trained:.1f} MB with Adam's moments")
    if preset in PAPERS_MB:
        paper = PAPERS_MB[preset]
        print(f"# the paper: {paper} MB (moments counted, output tied), {paper / trained:.3f} of these")
    print(dump(config), end="")


@config_app.command("list")
def config_list() -> None:
    """Names of the presets."""
    from raysum.config.loading import presets

    print("\n".join(presets()))


@config_app.command("schema")
def config_schema() -> None:
    """JSON schema of the config, for editors."""
    from raysum.config.sections import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
