"""Read the tokenizer of a published model's folder: its pieces and special tokens as the content of one file."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.tokenizers.fast import create_tokenizer
from raysum.tokenizers.special_tokens import SpecialTokens

_FILE = "tokenizer.json"
_OLDER_FILES = ("spiece.model", "sentencepiece.bpe.model", "merges.txt")  # in folders without tokenizer.json
_SENTINELS = {"t5": 100, "mt5": 0, "umt5": 300}  # ids after the pieces of spiece.model, unless the files have others
_DECODERS = ("ByteLevel", "Metaspace", "Sequence")
_PROBES = ("Title", "a", "1")
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
_BETWEEN_DOCUMENTS = "<doc-sep>"  # of PRIMERA
_DEFAULT_NAMES = {  # of transformers, if no file has them
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
_LINE_END = "Ċ"  # in byte-level pieces

_Ids = tuple[int, ...]


def read_tokenizer_folder(folder: Path, language: str | None = None) -> bytes:
    """Return the tokenizer in ``folder`` as the file of a dataset or run; the tokenizer.json of a BERT is unchanged.

    Raises OSError if there is no tokenizer.json, and UserError if raysum does not support it.
    """
    content = _content(folder)
    try:
        values = json.loads(content)
        kind, decoder = values["model"].get("type"), (values.get("decoder") or {}).get("type")
        for token in values.get("added_tokens") or ():
            token["special"] = token.get("special", False) or token.get("content") == _BETWEEN_DOCUMENTS
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{folder / _FILE} is not a valid tokenizer.json: {error!r}") from None
    if kind == "WordPiece":
        return content
    if decoder not in _DECODERS:
        raise UserError(f"{folder / _FILE} has the decoder {decoder}; supported are {', '.join(_DECODERS)}")
    values |= {"truncation": None, "padding": None}
    tokenizer, files = create_tokenizer(values, str(folder / _FILE)), Files(folder)
    if not tokenizer.encode(_PROBES[0], add_special_tokens=False).ids:
        raise UserError(f"{folder / _FILE} has no pieces for letters; copy it again")
    size = files.id("vocab_size") or tokenizer.get_vocab_size()
    stored = {"marks": _marks(tokenizer, files, size, language).model_dump(), "vocabulary": size, "tokenizer": values}
    ordinary = set(tokenizer.get_vocab().values()) - _special(tokenizer).keys()
    if max(ordinary, default=0) >= size:
        raise UserError(f"{folder} has {max(ordinary) + 1} pieces, but config.json describes a model of {size}")
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()


class Files:
    """The JSON files of a published folder. ``generation`` is generation_config.json, or config.json if it is missing,
    as in transformers."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = self._read("config.json")
        self.generation = self._read("generation_config.json") or self.config
        tokens = self._read("special_tokens_map.json")
        known = {name: value for name, value in tokens.items() if value is not None}
        self.names = {**self._read("tokenizer_config.json"), **known}

    def task(self, name: str) -> dict[str, Any]:
        """Return the ``task_specific_params`` of a task."""
        tasks = self.config.get("task_specific_params")
        parameters = tasks.get(name) if isinstance(tasks, dict) else None
        return parameters if isinstance(parameters, dict) else {}

    def id(self, name: str) -> int | None:
        """Return an id such as ``decoder_start_token_id``, of generation if it has one; the first of several."""
        value = _first(self.generation.get(name), self.config.get(name))
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int else None

    def token(self, name: str) -> str | None:
        """Return a token such as ``pad_token``."""
        token = self.names.get(name, _DEFAULT_NAMES.get(name))
        token = token.get("content") if isinstance(token, dict) else token
        return token if isinstance(token, str) else None

    def _read(self, name: str) -> dict[str, Any]:
        file = self.folder / name
        try:
            values = json.loads(file.read_bytes()) if file.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is not valid JSON: {error}; copy it again") from None
        return values if isinstance(values, dict) else {}


def _content(folder: Path) -> bytes:
    """Return the tokenizer.json; transformers converts older files."""
    older = [name for name in _OLDER_FILES if (folder / name).is_file()]
    if (folder / _FILE).is_file() or not older:
        return (folder / _FILE).read_bytes()
    transformers = needs("transformers", f"{folder}, which has {older[0]} and no {_FILE},")
    try:
        if (kind := Files(folder).config.get("model_type")) in _SENTINELS:
            return _convert_sentencepiece(transformers.T5Tokenizer, folder, _SENTINELS[kind])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return tokenizer.backend_tokenizer.to_str().encode()
    except Exception as error:  # of many kinds
        raise UserError(
            f"{folder} has no {_FILE}, and transformers cannot make it of {older[0]}: {' '.join(str(error).split())}; "
            "create it with AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        ) from None


def _convert_sentencepiece(tokenizer_class: Any, folder: Path, sentinels: int) -> bytes:
    """Return the tokenizer.json of a spiece.model.

    Pieces of bytes spell the characters without a piece; the class of transformers ignores them.
    """
    names = Files(folder).names
    listed = [token for token in names.get("additional_special_tokens") or () if "<extra_id_" in str(token)]
    options = {} if "extra_ids" in names else {"extra_ids": len(listed) or sentinels}
    tokenizer = tokenizer_class.from_pretrained(folder, local_files_only=True, **options).backend_tokenizer
    values = json.loads(tokenizer.to_str())
    if tokenizer.token_to_id("<0x00>") is not None:
        values["model"]["byte_fallback"] = True
        spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        values["decoder"] = {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(values).encode()


def _marks(tokenizer: Any, files: Files, size: int, language: str | None) -> SpecialTokens:
    model_end, own = files.id("eos_token_id"), _id(tokenizer, files, "eos_token")
    end = _first(model_end, own)
    pad = _first(files.id("pad_token_id"), _id(tokenizer, files, "pad_token"))
    start, target_prefix, prefix, suffix = _around_texts(tokenizer, files, language)
    for name, id in (("end", end), ("padding", pad), ("start of a target", start)):
        if id is None or not 0 <= id < size:
            raise UserError(f"{files.folder} has no id for the {name}: add it to config.json")
    if own not in (None, end):
        raise UserError(
            f"{files.folder}: texts end with id {model_end} in config.json, but with {own} in tokenizer.json: "
            "the files belong to different models; copy both from one"
        )
    if pad == end:
        raise UserError(
            f"{files.folder} has the id {pad} for both the end and padding, so a model cannot learn to stop: change "
            "pad_token_id in config.json"
        )
    unknown = _id(tokenizer, files, "unk_token")
    masks = (_id(tokenizer, files, "mask_token"), tokenizer.token_to_id("<extra_id_0>"), unknown, pad)
    lines, documents = (_known_id(tokenizer, name) for name in (_LINE_END, _BETWEEN_DOCUMENTS))
    return SpecialTokens(
        pad=pad,
        start=start,
        end=end,
        unknown=unknown,
        mask=next(id for id in masks if id is not None and id < size),
        title_end=(*_colon(tokenizer, _first(unknown, end)), *lines),
        paragraph_end=documents or lines,
        sentence_end=None,
        prefix=prefix,
        suffix=suffix,
        joined_end=(*documents, *suffix),
        target_prefix=target_prefix,
    )


def _around_texts(tokenizer: Any, files: Files, language: str | None) -> tuple[int | None, _Ids, _Ids, _Ids]:
    """Return the start of a target, its prefix, and the prefix and suffix of a source.

    If one of these is a language, as in mBART, the target language is the first of ``language``, the language
    that generation starts with, the target language of the saved tokenizer, and the source language.
    """
    prefix, suffix = _around(tokenizer)
    start = _first(files.id("decoder_start_token_id"), files.id("bos_token_id"))
    languages = {name: id for id, name in _special(tokenizer).items() if _LANGUAGE.fullmatch(name)}
    spoken = next((id for id in (*prefix, *suffix) if id in languages.values()), None)
    if language is not None and (spoken is None or language not in languages):
        known = ", ".join(sorted(languages)) if spoken is not None else "none; leave it out"
        raise UserError(f"{files.folder} has no language {language!r}; its languages: {known}")
    if spoken is None:
        return start, () if prefix[:1] == (start,) else prefix, prefix, suffix
    configured = (files.id("forced_bos_token_id"), start, languages.get(files.token("tgt_lang") or ""))
    chosen = languages.get(language or "")
    target = _first(chosen, *(id for id in configured if id in languages.values()), spoken)
    before, after = (tuple(_first(chosen, id) if id == spoken else id for id in part) for part in (prefix, suffix))
    return (start, (target,), before, after) if spoken in prefix else (target, (), before, after)


def _first(*ids: Any) -> Any:
    return next((id for id in ids if id is not None), None)


def _id(tokenizer: Any, files: Files, name: str) -> int | None:
    return tokenizer.token_to_id(files.token(name) or "")


def _known_id(tokenizer: Any, token: str) -> tuple[int, ...]:
    id = tokenizer.token_to_id(token)
    return () if id is None else (id,)


def _special(tokenizer: Any) -> dict[int, str]:
    return {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the tokenizer adds before and after one sequence."""
    whole = tokenizer.encode(_PROBES[0]).ids
    inner = tokenizer.encode(_PROBES[0], add_special_tokens=False).ids
    at = next((at for at in range(len(whole)) if whole[at : at + len(inner)] == inner), 0)
    return tuple(whole[:at]), tuple(whole[at + len(inner) :])


def _colon(tokenizer: Any, default: int) -> Iterable[int]:
    """Return the ids of a colon after a word."""
    for word in _PROBES:
        alone, with_colon = (tokenizer.encode(text, add_special_tokens=False).ids for text in (word, f"{word}:"))
        if len(with_colon) > len(alone) and with_colon[: len(alone)] == alone:
            return with_colon[len(alone) :]
    return (_first(tokenizer.token_to_id(":"), default),)
