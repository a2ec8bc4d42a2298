"""Load a tokenizer from a file of a dataset or run, or from the folder of a published model.

Such a folder gives its pieces and special tokens as the content of one file.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.runtime.remote import is_url, read
from raysum.runtime.storage import check_regular
from raysum.tokenizers.fast import FastTokenizer, create_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.special_tokens import SpecialTokens
from raysum.tokenizers.tokenizer import STORED, Tokenizer

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


def load_tokenizer(path: str | Path, language: str | None = None) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model, of the file of a dataset or run, or of the folder of either or of
    a published model.

    ``language`` is the code of the texts' language, for published tokenizers of several languages.
    Raises UserError if ``path`` cannot be read or is none of these.
    """
    file = Path(path).expanduser()
    is_folder = not is_url(path) and file.is_dir()
    is_published = is_folder and not (file / STORED).is_file()
    if language is not None and not is_published:
        raise UserError(f"language {language!r} needs a published folder, which {path} is not: remove the option")
    file = file / (_FILE if is_published else STORED) if is_folder else file
    try:
        if is_published:
            content: bytes | None = _read_folder(file.parent, language)
        else:
            content = read(str(path)) if is_url(path) else check_regular(file).read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the vocabulary {error.filename or path}: {error.strerror}; give a .model file made by "
            "SentencePiece, or the folder of a published model with its tokenizer.json, or put back a copy"
        ) from None
    if content is None:
        raise UserError(f"there is no vocabulary {path}; give a .model file made by SentencePiece")
    return (FastTokenizer if content.lstrip()[:1] == b"{" else Vocabulary)(content, str(file))


def _read_folder(folder: Path, language: str | None = None) -> bytes:
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
    if not _ids(tokenizer, _PROBES[0]):
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
        return check_regular(folder / _FILE).read_bytes()
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
    def id_of(name: str) -> int | None:
        return tokenizer.token_to_id(files.token(name) or "")

    def known(token: str) -> _Ids:
        id = tokenizer.token_to_id(token)
        return () if id is None else (id,)

    model_end, own, unknown = files.id("eos_token_id"), id_of("eos_token"), id_of("unk_token")
    end, pad = _first(model_end, own), _first(files.id("pad_token_id"), id_of("pad_token"))
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
    masks = (id_of("mask_token"), tokenizer.token_to_id("<extra_id_0>"), unknown, pad)
    lines, documents = known(_LINE_END), known(_BETWEEN_DOCUMENTS)
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
    whole, inner = tokenizer.encode(_PROBES[0]).ids, _ids(tokenizer, _PROBES[0])
    at = next((at for at in range(len(whole)) if whole[at : at + len(inner)] == inner), 0)
    prefix, suffix = tuple(whole[:at]), tuple(whole[at + len(inner) :])
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


def _colon(tokenizer: Any, default: int) -> Iterable[int]:
    """Return the ids of a colon after a word."""
    for word in _PROBES:
        alone, with_colon = _ids(tokenizer, word), _ids(tokenizer, f"{word}:")
        if len(with_colon) > len(alone) and with_colon[: len(alone)] == alone:
            return with_colon[len(alone) :]
    return (_first(tokenizer.token_to_id(":"), default),)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def _special(tokenizer: Any) -> dict[int, str]:
    return {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def _first(*ids: Any) -> Any:
    return next((id for id in ids if id is not None), None)
