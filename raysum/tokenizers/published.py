"""The tokenizer in the folder of a published model: its pieces, and the marks that its files tell, as one file."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.tokenizers.fast import opened
from raysum.tokenizers.special_tokens import SpecialTokens

_FILE = "tokenizer.json"
_FORMER = ("spiece.model", "sentencepiece.bpe.model", "merges.txt")  # what older folders have in its place
_SENTINELS = {"t5": 100, "mt5": 0, "umt5": 300}  # ids behind the pieces of spiece.model, unless the files tell others
_DECODERS = ("ByteLevel", "Metaspace", "Sequence")
_PROBES = ("Title", "a", "1")
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
_BETWEEN_DOCUMENTS = "<doc-sep>"  # of PRIMERA
# What transformers calls them where no file does.
_USUAL = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
_LINE_END = "Ċ"  # as byte-level pieces write it

_Ids = tuple[int, ...]


def read_folder(folder: Path, language: str | None = None) -> bytes:
    """The content of the file that a dataset or run keeps of the tokenizer in ``folder``; a bert's tokenizer.json as
    it is.

    Raises OSError where there is no tokenizer.json, and UserError where it is not one that models which write read.
    """
    content = _content(folder)
    try:
        told = json.loads(content)
        kind, decoder = told["model"].get("type"), (told.get("decoder") or {}).get("type")
        for token in told.get("added_tokens") or ():
            token["special"] = token.get("special", False) or token.get("content") == _BETWEEN_DOCUMENTS
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{folder / _FILE} is no tokenizer.json that reads: {error!r}") from None
    if kind == "WordPiece":
        return content
    if decoder not in _DECODERS:
        raise UserError(f"{folder / _FILE} decodes by {decoder}; those read are {', '.join(_DECODERS)}")
    told |= {"truncation": None, "padding": None}
    tokenizer, files = opened(told, str(folder / _FILE)), Files(folder)
    if not tokenizer.encode(_PROBES[0], add_special_tokens=False).ids:
        raise UserError(f"{folder / _FILE} has no pieces for letters; copy it again")
    size = files.id("vocab_size") or tokenizer.get_vocab_size()
    stored = {"marks": _marks(tokenizer, files, size, language).model_dump(), "vocabulary": size, "tokenizer": told}
    ordinary = set(tokenizer.get_vocab().values()) - _special(tokenizer).keys()
    if max(ordinary, default=0) >= size:
        raise UserError(f"{folder} has {max(ordinary) + 1} pieces, and config.json tells of a model of {size}")
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()


class Files:
    """What the JSON files of a published folder tell: of the model and, as transformers has it, of ``generation``:
    generation_config.json, or where there is none config.json."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = self._read("config.json")
        self.generation = self._read("generation_config.json") or self.config
        self.names = {**self._read("tokenizer_config.json"), **_known(self._read("special_tokens_map.json"))}

    def task(self, name: str) -> dict[str, Any]:
        """What ``task_specific_params`` tell of a task."""
        tasks = self.config.get("task_specific_params")
        found = tasks.get(name) if isinstance(tasks, dict) else None
        return found if isinstance(found, dict) else {}

    def id(self, name: str) -> int | None:
        """``decoder_start_token_id`` and its like, of generation if it is told there; the first of several."""
        found = _first(self.generation.get(name), self.config.get(name))
        found = found[0] if isinstance(found, list) and found else found
        return found if type(found) is int else None

    def token(self, name: str) -> str | None:
        """``pad_token`` and its like."""
        found = self.names.get(name, _USUAL.get(name))
        found = found.get("content") if isinstance(found, dict) else found
        return found if isinstance(found, str) else None

    def _read(self, name: str) -> dict[str, Any]:
        file = self.folder / name
        try:
            told = json.loads(file.read_bytes()) if file.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} does not read: {error}; copy it again") from None
        return told if isinstance(told, dict) else {}


def _known(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}


def _content(folder: Path) -> bytes:
    """The tokenizer.json; made by transformers where the folder has what was used before."""
    former = [name for name in _FORMER if (folder / name).is_file()]
    if (folder / _FILE).is_file() or not former:
        return (folder / _FILE).read_bytes()
    transformers = needs("transformers", f"{folder}, which has {former[0]} and no {_FILE},")
    try:
        if (kind := Files(folder).config.get("model_type")) in _SENTINELS:
            return _of_sentencepiece(transformers.T5Tokenizer, folder, _SENTINELS[kind])
        found = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return found.backend_tokenizer.to_str().encode()
    except Exception as error:  # of many kinds
        raise UserError(
            f"{folder} has no {_FILE}, and transformers cannot make it of {former[0]}: {' '.join(str(error).split())}; "
            "put one there by AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        ) from None


def _of_sentencepiece(tokenizer_class: Any, folder: Path, sentinels: int) -> bytes:
    """The tokenizer.json of a spiece.model. Characters without a piece are spelled by bytes if these have pieces, which
    the class of transformers leaves out."""
    names = Files(folder).names
    listed = [token for token in names.get("additional_special_tokens") or () if "<extra_id_" in str(token)]
    told = {} if "extra_ids" in names else {"extra_ids": len(listed) or sentinels}
    tokenizer = tokenizer_class.from_pretrained(folder, local_files_only=True, **told).backend_tokenizer
    found = json.loads(tokenizer.to_str())
    if tokenizer.token_to_id("<0x00>") is not None:
        found["model"]["byte_fallback"] = True
        spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        found["decoder"] = {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(found).encode()


def _marks(tokenizer: Any, files: Files, size: int, language: str | None) -> SpecialTokens:
    told, own = files.id("eos_token_id"), _id(tokenizer, files, "eos_token")
    end = _first(told, own)
    pad = _first(files.id("pad_token_id"), _id(tokenizer, files, "pad_token"))
    start, target_prefix, prefix, suffix = _around_texts(tokenizer, files, language)
    for name, id in (("end", end), ("padding", pad), ("start of a target", start)):
        if id is None or not 0 <= id < size:
            raise UserError(f"{files.folder} does not tell the id of the {name}, as its config.json should")
    if own not in (None, end):
        raise UserError(
            f"{files.folder}: texts end with id {told} by its config.json, and with {own} by its tokenizer.json: "
            "they are of different models; copy both from one"
        )
    if pad == end:
        raise UserError(
            f"{files.folder} has the id {pad} for both the end and padding, so that no model could learn to end; "
            "give pad_token_id another in its config.json"
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
    """The start of a target and what follows it, the prefix and the suffix of a source.

    Where one of these is a language, as in mBART, that of targets is ``language``, else the one that generation is to
    begin with, else the target language that the tokenizer was saved with, else the source's.
    """
    prefix, suffix = _around(tokenizer)
    start = _first(files.id("decoder_start_token_id"), files.id("bos_token_id"))
    languages = {name: id for id, name in _special(tokenizer).items() if _LANGUAGE.fullmatch(name)}
    spoken = next((id for id in (*prefix, *suffix) if id in languages.values()), None)
    if language is not None and (spoken is None or language not in languages):
        known = ", ".join(sorted(languages)) if spoken is not None else "none; leave it out"
        raise UserError(f"{files.folder} has no language {language!r}; it knows {known}")
    if spoken is None:
        return start, () if prefix[:1] == (start,) else prefix, prefix, suffix
    told = (files.id("forced_bos_token_id"), start, languages.get(files.token("tgt_lang") or ""))
    wanted = languages.get(language or "")
    written = _first(wanted, *(id for id in told if id in languages.values()), spoken)
    before, behind = (tuple(_first(wanted, id) if id == spoken else id for id in part) for part in (prefix, suffix))
    return (start, (written,), before, behind) if spoken in prefix else (written, (), before, behind)


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
    """What the tokenizer puts before and behind one sequence."""
    whole = tokenizer.encode(_PROBES[0]).ids
    inner = tokenizer.encode(_PROBES[0], add_special_tokens=False).ids
    at = next((at for at in range(len(whole)) if whole[at : at + len(inner)] == inner), 0)
    return tuple(whole[:at]), tuple(whole[at + len(inner) :])


def _colon(tokenizer: Any, otherwise: int) -> Iterable[int]:
    """The ids of a colon that follows a word."""
    for word in _PROBES:
        alone, found = (tokenizer.encode(text, add_special_tokens=False).ids for text in (word, f"{word}:"))
        if len(found) > len(alone) and found[: len(alone)] == alone:
            return found[len(alone) :]
    return (_first(tokenizer.token_to_id(":"), otherwise),)
