"""Tiny tokenizers of each published family, in folders as they are published: saved by transformers, with a config."""

import json
import string
import tempfile
from pathlib import Path
from typing import Any

from transformers import (
    BartTokenizerFast,
    MBart50TokenizerFast,
    MBartTokenizerFast,
    PegasusTokenizerFast,
    T5TokenizerFast,
)

from raysum.examples.factbook.corpus import generate
from raysum.tokenizers.loading import load_tokenizer
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, normalizers, pre_tokenizers, trainers

FAMILIES = ("bart", "led", "primera", "t5", "pegasus", "mbart", "mbart50")
T5 = ("t5", "mt5", "umt5")
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_MORE = [
    "Zażółć gęślą jaźń — «naïve» 1,820 facts: 37.5% (of §4).",
    "Über die Brücke; 大教堂于1436年完工。",
    'don\'t stop… "now"!',
]


def texts() -> list[str]:
    raws = generate("train", 40)
    return [*_MORE * 3, *(raw["summary"] for raw in raws), *(d["text"] for raw in raws for d in raw["documents"])]


def published(folder: Path, family: str) -> Path:
    """The folder of the ``family``'s tokenizer, with a config.json; mT5 and UMT5 have T5's."""
    if family in ("bart", "led", "primera"):
        tokenizer, config = _byte_level(family)
    else:
        tokenizer, config = _unigram(family)
    tokenizer.save_pretrained(folder)
    config |= {"vocab_size": len(tokenizer) + (28 if family in T5 else 0)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _byte_level(family: str) -> tuple[Any, dict[str, Any]]:
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts(), 900, special_tokens=[*_SPECIAL, "<mask>"], show_progress=False)
    told = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in told["merges"]]
    more = {"additional_special_tokens": ["<doc-sep>"]} if family == "primera" else {}
    tokenizer = BartTokenizerFast(vocab=told["vocab"], merges=merges, **more)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    # PRIMERA's targets begin with <s>, as its trainer has it.
    return tokenizer, {"model_type": family, **ids, "decoder_start_token_id": 0 if family == "primera" else 2}


def _unigram(model_type: str) -> tuple[Any, dict[str, Any]]:
    family = "t5" if model_type in T5 else model_type
    first = {
        "t5": ["<pad>", "</s>", "<unk>"],
        "pegasus": ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103)), "<unk>"],
        "mbart": [*_SPECIAL],
        "mbart50": ["<unk>", "<s>", "</s>"],  # to which it adds the others itself
    }[family]
    vocab = [(piece, 0.0) for piece in first] + _pieces()
    make, more = {
        "t5": (T5TokenizerFast, {}),
        "pegasus": (PegasusTokenizerFast, {}),
        "mbart": (MBartTokenizerFast, {"src_lang": "en_XX", "tgt_lang": "de_DE"}),
        "mbart50": (MBart50TokenizerFast, {"src_lang": "en_XX", "tgt_lang": "de_DE"}),
    }[family]
    tokenizer = make(vocab=vocab, **more)
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    starts = {"t5": pad, "pegasus": pad, "mbart50": end}  # of mBART it is the language, which its config leaves open
    config = {
        "model_type": model_type,
        "pad_token_id": pad,
        "eos_token_id": end,
        "bos_token_id": tokenizer.bos_token_id,
    }
    return tokenizer, config | {"decoder_start_token_id": starts.get(family)}


def _pieces() -> list[tuple[str, float]]:
    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.NFKC()
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=[], unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(texts(), trainer)
    found = [(piece, score) for piece, score in json.loads(trained.to_str())["model"]["vocab"] if piece != "<unk>"]
    single = {*string.ascii_letters, *"".join(texts())} - {*" \n", *(piece for piece, _ in found)}
    return [*found, *((character, -12.0) for character in sorted(single))]


def tokenizer_of(family: str) -> Any:
    """As raysum reads it."""
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(published(Path(folder) / family, family))
