"""Beam search with ``early_stopping`` finds what ``generate`` of transformers finds: all beams with their scores."""

import random
from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import beam_search
from raysum.tokenizers.special_tokens import SpecialTokens

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 200, "d_model": 16, "tie_word_embeddings": False}
LAYERS = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
WIDTHS = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
CONFIGS = {
    "bart": transformers.BartConfig(**SIZES, **LAYERS, **WIDTHS),
    "pegasus": transformers.PegasusConfig(**SIZES, **LAYERS, **WIDTHS),
    "t5": transformers.T5Config(**SIZES, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0),
}
FORCED = 7  # the first token, where it is forced
LENGTH = 16


@dataclass
class Prefixes:
    """The live hypotheses of a :class:`Stepper`, which computes each of them anew at every step."""

    states: Tensor  # [B * R, S, D]
    mask: Tensor
    beams: int
    tokens: Tensor  # [B * R, T]

    def reorder(self, parent: Tensor) -> None:
        first = torch.arange(len(parent))[:, None] * self.beams
        self.tokens = self.tokens[(first + parent).flatten()]

    def keep(self, examples: Tensor) -> None:
        rows = (examples[:, None] * self.beams + torch.arange(self.beams)).flatten()
        self.states, self.mask, self.tokens = self.states[rows], self.mask[rows], self.tokens[rows]


@dataclass
class Stepper:
    """A model of transformers as what a search continues hypotheses with."""

    model: Any

    def encode(self, ids: Tensor, mask: Tensor) -> SimpleNamespace:
        states = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        return SimpleNamespace(states=states, mask=mask, paragraph_mask=torch.ones(len(ids), 1, dtype=torch.bool))

    def start(self, memory: Any, beams: int) -> Prefixes:
        states, mask = (part.repeat_interleave(beams, 0) for part in (memory.states, memory.mask))
        return Prefixes(states, mask, beams, torch.empty(len(states), 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: Prefixes, attention: Any = False) -> tuple[Tensor, None]:
        state.tokens = torch.cat((state.tokens, tokens[:, None]), 1)
        read = {"encoder_outputs": (state.states,), "attention_mask": state.mask}
        return self.model(**read, decoder_input_ids=state.tokens, use_cache=False).logits[:, -1], None


@dataclass(frozen=True)
class Published:
    """A tiny random model, sources of uneven length, and its ids. In fp64, so that no two beams are equal by chance."""

    model: Any
    ids: Tensor
    mask: Tensor

    @classmethod
    def of(cls, name: str, sources: int) -> "Published":
        torch.manual_seed(5)
        model = transformers.AutoModelForSeq2SeqLM.from_config(CONFIGS[name]).double().eval()
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            spread = 0.3 if tensor.dim() > 1 else 0.1
            reads = "encoder_attn" in key or "EncDecAttention" in key  # so that what is read decides
            tensor.data.normal_(std=3 * spread if reads else spread).add_("norm.weight" in key)
        model.get_output_embeddings().weight.data[model.config.eos_token_id] *= 4  # so that some end early
        model.generation_config = transformers.GenerationConfig()  # else what is not forced is forced by its own
        lengths = torch.randint(3, 20, (sources,))
        mask = (torch.arange(20) < lengths[:, None]).long()
        return cls(model, torch.randint(3, 200, (sources, 20)) * mask, mask)

    @property
    def marks(self) -> SpecialTokens:
        config = self.model.config
        start, end, pad = config.decoder_start_token_id, config.eos_token_id, config.pad_token_id
        return SpecialTokens(start=start, end=end, pad=pad, sentence_end=None)

    def generate(self, settings: DecodeConfig) -> list[list[tuple[list[int], float]]]:
        """What transformers finds: lengths there count the start token."""
        beams, marks = settings.num_beams, self.marks
        config = transformers.GenerationConfig(
            num_beams=beams,
            num_return_sequences=beams,
            max_length=settings.max_length + 1,
            min_length=settings.min_length + 1,
            early_stopping=settings.early_stopping,
            length_penalty=settings.length_penalty,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
            forced_bos_token_id=settings.forced_bos_token_id,
            forced_eos_token_id=settings.forced_eos_token_id,
            decoder_start_token_id=marks.start,
            eos_token_id=marks.end,
            pad_token_id=marks.pad,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        found = self.model.generate(self.ids, attention_mask=self.mask, generation_config=config)
        ids = [row[: row.index(marks.end) + 1] if marks.end in row else row for row in found.sequences[:, 1:].tolist()]
        if beams == 1:  # greedy search tells no scores; what is forced is certain
            steps = torch.stack(found.logits).float().log_softmax(-1)
            steps[torch.stack(found.scores).isfinite().sum(-1) == 1] = 0
            sums = [sum(steps[t, row, token].item() for t, token in enumerate(one)) for row, one in enumerate(ids)]
            scores = [each / len(one) ** settings.length_penalty for each, one in zip(sums, ids, strict=True)]
        else:
            scores = found.sequences_scores.tolist()
        pairs = list(zip(ids, scores, strict=True))
        return [pairs[start : start + beams] for start in range(0, len(pairs), beams)]

    def search(self, settings: DecodeConfig) -> list[list[tuple[list[int], float]]]:
        stepper = Stepper(self.model)
        with torch.inference_mode():
            memory = stepper.encode(self.ids, self.mask)
            found = beam_search(stepper, memory, settings, marks=self.marks)
        return [[(one.ids, one.score) for one in example] for example in found]


def chosen(beams: int, penalty: float, stopping: Any, blocked: int, least: int, forced: bool, end: int) -> DecodeConfig:
    return DecodeConfig(
        num_beams=beams,
        n_best=beams,
        early_stopping=stopping,
        length_normalization="length",
        length_penalty=penalty,
        no_repeat_ngram_size=blocked,
        forced_bos_token_id=FORCED if forced else None,
        forced_eos_token_id=end if forced else None,
        min_length=least,
        max_length=LENGTH,
    )


def ids_of(found: list[list[tuple[list[int], float]]]) -> list[list[list[int]]]:
    return [[ids for ids, _ in example] for example in found]


def check(published: Published, *told: Any) -> list[list[list[int]]]:
    """That both find the same with settings so ``told``; returns the ids."""
    settings = chosen(*told, published.marks.end)
    expected, found = published.generate(settings), published.search(settings)
    assert ids_of(found) == ids_of(expected), told
    scores, marks = ([mark for example in both for _, mark in example] for both in (found, expected))
    assert scores == pytest.approx(marks, abs=1e-5), told
    return ids_of(found)


GRID = [(0.8, 1.0, 2.0), (True, False, "never"), (0, 3), (0, 5), (False, True)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_a_sample_of_searches_equals_generate(name, beams):
    published = Published.of(name, 8)
    for told in random.Random(name).sample([*product(*GRID)], 4):
        check(published, beams, *told)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_searches_equal_generate(name, beams):
    published = Published.of(name, 50)
    found = {told: check(published, beams, *told) for told in product(*GRID)}
    early = [len(ids) < LENGTH for example in found[1.0, False, 0, 0, False] for ids in example]
    assert 0.05 < sum(early) / len(early) < 0.95, "they all end early, or none does"
    for place, choices in enumerate(GRID):
        if beams > 1 or place > 1:  # greedy search knows neither penalty nor stopping
            others = [
                {told[:place] + told[place + 1 :]: ids for told, ids in found.items() if told[place] == choice}
                for choice in choices
            ]
            for some, more in pairwise(others):
                assert some != more, "a setting that never matters tests nothing"
