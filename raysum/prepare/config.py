"""The settings of `raysum prepare`, and the split of each cluster."""

import hashlib
import os
import reprlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, get_args

from pydantic import Field, PrivateAttr, field_validator, model_validator

from raysum.config.base import Section
from raysum.data.recipe import OF_PARAGRAPHS, Choices, Ranker, Recipe
from raysum.runtime.remote import is_url
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.record import SPLITS, Record, split_of
from raysum.text.cleaning import Normalization
from raysum.tokenizers.special_tokens import SPECIAL_PIECES


class Shaped(Section):
    """The mapping of the fields of raw rows."""

    map: list[str] = Field(
        [],
        description="paths of our fields in other rows: title=head documents=articles[].text, or several columns: "
        "documents=rev1,rev2 documents=rev*",
    )
    separator: str | None = Field(None, description="the text between documents in one text, such as '|||||'")
    format: str | None = Field(
        None,
        description="the input format, if it cannot be detected: tsv, torch, wcep ...; 'text': all files of a folder "
        "are documents",
    )

    @field_validator("map", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return [value] if isinstance(value, str) else value
        paths = {name: path if isinstance(path, list | tuple) else [path] for name, path in value.items()}
        return [f"{name}={path}" for name, field_paths in paths.items() for path in field_paths]

    @model_validator(mode="after")
    def _check_mapping(self) -> "Shaped":
        self.mapping  # noqa: B018 - checks it
        return self

    @property
    def mapping(self) -> FieldMapping:
        return FieldMapping.of(self.map, self.separator, self.format)


class PrepareConfig(Choices, Shaped):
    ALIASES: ClassVar[dict[str, str]] = {"pieces": "vocab_size", **Choices.ALIASES}

    out: str = Field(description="dataset folder to write")
    vocab: str | None = Field(
        None, description="SentencePiece model, or the folder of a published model; the default trains a vocabulary"
    )
    summaries: str | None = Field(
        None, description="folder or file of the summaries of documents: files with equal names, or parallel lines"
    )
    language: str | None = Field(
        None, description="code of the texts' language in a published multilingual tokenizer, such as de_DE"
    )
    vocab_size: int = Field(
        32000, gt=len(SPECIAL_PIECES), le=1_000_000, description="pieces of a trained vocabulary (HT, section 4)"
    )
    normalize: Normalization | None = Field(
        None, description="none, lower or lower-split; the default is what the vocabulary needs"
    )
    split: str | None = Field(None, description="split of all sources; the default comes from rows and file names")
    valid: float = Field(0.0, ge=0, lt=1, description="share of clusters of no named split held out for validation")
    test: float = Field(0.0, ge=0, lt=1, description="share of clusters of no named split held out for testing")
    max_rejected: float = Field(0.1, ge=0, le=1, description="share of rows that may be rejected")
    address: str | None = Field(None, description="address of a running Ray cluster")

    @property
    def mapping(self) -> FieldMapping:
        return FieldMapping.of(self.map, self.separator, self.format, self.summaries)

    _limits: tuple[float, float] | None = PrivateAttr(None)  # exact upper limits of the held-out positions

    @model_validator(mode="after")
    def _check(self) -> "PrepareConfig":
        if self.split is not None and self.split not in SPLITS:
            raise ValueError(f"no split {self.split!r}; the splits are {', '.join(SPLITS)}")
        is_there = not self.ranker_is_run or is_url(self.ranker) or os.path.isdir(os.path.expanduser(self.ranker))
        if self.ranker == "learned" or not is_there:
            raise ValueError(
                f"no ranker {self.ranker!r:.100}: give tfidf, lexrank, none, or the folder of one that "
                "`raysum train ranker data=DATA out=RUN` trained"
            )
        if self.language is not None and self.vocab is None:
            raise ValueError(f"language {self.language!r} needs a published tokenizer: set vocab to its folder")
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid:g} and test {self.test:g} hold out all clusters; leave some for training"
            )
        if self.kind != "summarization":
            unused: tuple[str, ...] = OF_PARAGRAPHS
            rows = "all sentences in document order"
            if self.kind == "ranking":
                unused, rows = ("max_paragraphs", "graph"), "all paragraphs and no graph"
            fields = type(self).model_fields
            if idle := [name for name in unused if getattr(self, name) != fields[name].default]:
                raise ValueError(f"rows of kind {self.kind} have {rows}; leave {idle[0]} out")
        return self

    @property
    def ranker_is_run(self) -> bool:
        return self.ranker not in get_args(Ranker)

    def recipe(
        self,
        vocabulary_sha256: str,
        normalize: Normalization,
        ranker_sha256: str | None = None,
        boilerplate_marks: list[str] | None = None,
    ) -> Recipe:
        found = {"vocabulary_sha256": vocabulary_sha256, "normalize": normalize, "boilerplate_marks": boilerplate_marks}
        if ranker_sha256:
            found |= {"ranker": "learned", "ranker_sha256": ranker_sha256}
        return Recipe(**self.model_dump(include={*Choices.model_fields}) | found)

    def choose_split(self, record: Record, by_file: str | None) -> str | None:
        """Return the split: by the setting, the row's own field, the file name, or the held-out shares, in this order.

        None if the row's own field is not a split. The hash of its id decides whether a cluster is held out, so the
        order of the clusters does not matter.
        """
        if self.split:
            return self.split
        if (own := _own_split(record)) not in (None, ""):
            return split_of(own)
        if by_file:
            return by_file
        position, limits = hash_of(record.id), self._limits or (self.valid, self.valid + self.test)
        splits = zip(("valid", "test"), limits, strict=True)
        return next((split for split, limit in splits if position < limit), "train")

    def split_record(self, record: Record, by_file: str | None) -> tuple[str, Record]:
        """Return the split and the record. A record whose own field is not a split is in train, with a problem."""
        if split := self.choose_split(record, by_file):
            return split, record
        problem = f"split is none of {', '.join(SPLITS)}"
        return "train", replace(record, problem=problem, detail=reprlib.repr(_own_split(record)))

    def drawn(self, records: Iterable[Record]) -> "PrepareConfig":
        """Return the settings that hold out exact shares of ``records``, all without a named split.

        With few records, the hashes alone could miss the shares by far. Each share holds out at least one record.
        """
        unnamed = (record for record in records if not record.problem and _own_split(record) in (None, ""))
        positions = sorted(hash_of(record.id) for record in unnamed)
        valid, test = (max(1, round(len(positions) * share)) if share else 0 for share in (self.valid, self.test))
        if valid + test >= len(positions):
            return self
        base = self.model_copy()
        base._limits = positions[valid], positions[valid + test]
        return base


def _own_split(record: Record) -> Any:
    return record.raw.get("split") if isinstance(record.raw, dict) else None


def hash_of(id: str) -> float:
    """Return the hash of an id as a number from 0 to 1."""
    digest = hashlib.blake2b(id.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
