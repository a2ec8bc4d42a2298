"""Verbs that read and write checkpoints of other codes."""

from typing import Annotated, Any

import typer

from raysum.cli.options import Overrides


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
    language: Annotated[str | None, typer.Option(help="huggingface: of the texts, as mBART calls it: de_DE.")] = None,
) -> Any:
    """Turn a published checkpoint into a run that summarize, evaluate and serve take.

    KEY=VALUE are for huggingface: model.encoder=LGLGLG model.decoder=PPPPPP chooses the mix."""
    from raysum.importing.checkpoint import import_checkpoint as run

    return run(kind, file, out, vocab, heads=heads, dropout=dropout, language=language, overrides=overrides or ())


def export_checkpoint(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="huggingface.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that was imported, or trained from such a one.")],
    out: Annotated[str, typer.Option(help="Folder to write, which transformers loads.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step.")] = "best",
) -> Any:
    """Turn a run with the layers of a pretrained model into a folder that transformers loads."""
    from raysum.importing.checkpoint import export_checkpoint as write

    return write(kind, run, out, checkpoint)
