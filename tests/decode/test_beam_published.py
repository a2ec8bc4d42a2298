"""Beam search with ``early_stopping`` finds what ``generate`` of transformers finds: all beams with their scores."""

import random
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
Found = list[list[tuple[list[int], float]]]  # ids and scores of the beams of each source


class Published:
    """A tiny random model, sources of uneven length, and its ids. In fp64, so that no two beams are equal by chance.

    It is also a step model, which computes each live hypothesis again at every step, and its state.
    """

    def __init__(self, name: str, sources: int):
        torch.manual_seed(5)
        self.model = transformers.AutoModelForSeq2SeqLM.from_config(CONFIGS[name]).double().eval()
        for key, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            spread = 0.3 if tensor.dim() > 1 else 0.1
            reads = "encoder_attn" in key or "EncDecAttention" in key  # so that the source decides
            tensor.data.normal_(std=3 * spread if reads else spread).add_("norm.weight" in key)
        config = self.model.config
        self.model.get_output_embeddings().weight.data[config.eos_token_id] *= 4  # so that some end early
        self.model.generation_config = transformers.GenerationConfig()  # otherwise it forces its own tokens
        lengths = torch.randint(3, 20, (sources,))
        self.mask = (torch.arange(20) < lengths[:, None]).long()
        self.ids = torch.randint(3, 200, (sources, 20)) * self.mask
        start, end, pad = config.decoder_start_token_id, config.eos_token_id, config.pad_token_id
        self.marks = SpecialTokens(start=start, end=end, pad=pad, sentence_end=None)

    def generate(self, settings: DecodeConfig) -> Found:
        """Return what transformers finds: lengths there count the start token."""
        beams, marks = settings.num_beams, self.marks
        forced = ("forced_bos_token_id", "forced_eos_token_id")
        same = {"num_beams", "early_stopping", "length_penalty", "no_repeat_ngram_size", *forced}
        config = transformers.GenerationConfig(
            **settings.model_dump(include=same),
            **{"num_return_sequences": beams, "max_length": settings.max_length + 1},
            **{"min_length": settings.min_length + 1, "return_dict_in_generate": True},
            **{"decoder_start_token_id": marks.start, "eos_token_id": marks.end, "pad_token_id": marks.pad},
            **{"output_scores": True, "output_logits": True},
        )
        found = self.model.generate(self.ids, attention_mask=self.mask, generation_config=config)
        ids = [row[: row.index(marks.end) + 1] if marks.end in row else row for row in found.sequences[:, 1:].tolist()]
        if beams == 1:  # greedy search returns no scores; a forced token is certain
            steps = torch.stack(found.logits).float().log_softmax(-1)
            steps[torch.stack(found.scores).isfinite().sum(-1) == 1] = 0
            sums = [sum(steps[t, row, token].item() for t, token in enumerate(one)) for row, one in enumerate(ids)]
            scores = [each / len(one) ** settings.length_penalty for each, one in zip(sums, ids, strict=True)]
        else:
            scores = found.sequences_scores.tolist()
        pairs = list(zip(ids, scores, strict=True))
        return [pairs[start : start + beams] for start in range(0, len(pairs), beams)]

    @torch.inference_mode()
    def search(self, settings: DecodeConfig) -> Found:
        memory = SimpleNamespace(paragraph_mask=torch.ones(len(self.ids), 1, dtype=torch.bool))
        found = beam_search(self, memory, settings, marks=self.marks)
        return [[(one.ids, one.score) for one in example] for example in found]

    def start(self, memory: Any, beams: int) -> "Published":
        read = self.model.get_encoder()(input_ids=self.ids, attention_mask=self.mask).last_hidden_state
        self.parts = [part.repeat_interleave(beams, 0) for part in (read, self.mask)]
        self.tokens, self.beams = self.parts[1].new_empty(len(self.parts[0]), 0), beams
        return self

    def reorder(self, parent: Tensor) -> None:
        self.tokens = self.tokens[(torch.arange(len(parent))[:, None] * self.beams + parent).flatten()]

    def keep(self, examples: Tensor) -> None:
        rows = (examples[:, None] * self.beams + torch.arange(self.beams)).flatten()
        self.tokens, *self.parts = (part[rows] for part in (self.tokens, *self.parts))

    def step(self, tokens: Tensor, state: Any, attention: Any = False) -> tuple[Tensor, None]:
        self.tokens = torch.cat((self.tokens, tokens[:, None]), 1)
        read = {"encoder_outputs": (self.parts[0],), "attention_mask": self.parts[1], "use_cache": False}
        return self.model(**read, decoder_input_ids=self.tokens).logits[:, -1], None


def ids_of(found: Found) -> list[list[list[int]]]:
    return [[ids for ids, _ in example] for example in found]


def check(
    published: Published, beams: int, penalty: float, stopping: Any, size: int, least: int, forced: bool
) -> list[list[list[int]]]:
    """Check that both find the same with these settings, and return the ids."""
    settings = DecodeConfig(
        **{"num_beams": beams, "n_best": beams, "early_stopping": stopping, "no_repeat_ngram_size": size},
        **{"length_normalization": "length", "length_penalty": penalty, "min_length": least, "max_length": LENGTH},
        **({"forced_bos_token_id": FORCED, "forced_eos_token_id": published.marks.end} if forced else {}),
    )
    expected, found = published.generate(settings), published.search(settings)
    assert ids_of(found) == ids_of(expected), settings
    scores, others = ([score for example in both for _, score in example] for both in (found, expected))
    assert scores == pytest.approx(others, abs=1e-5), settings
    return ids_of(found)


GRID = [(0.8, 1.0, 2.0), (True, False, "never"), (0, 3), (0, 5), (False, True)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_a_sample_of_searches_equals_generate(name, beams):
    published = Published(name, 8)
    for chosen in random.Random(name).sample([*product(*GRID)], 4):
        check(published, beams, *chosen)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("beams", [1, 4, 8])
def test_searches_equal_generate(name, beams):
    published = Published(name, 50)
    found = {chosen: check(published, beams, *chosen) for chosen in product(*GRID)}
    early = [len(ids) < LENGTH for example in found[1.0, False, 0, 0, False] for ids in example]
    assert 0.05 < sum(early) / len(early) < 0.95, "they all end early, or none does"
    for place, choices in enumerate(GRID):
        if beams > 1 or place > 1:  # greedy search uses neither penalty nor stopping
            others = [
                {key[:place] + key[place + 1 :]: ids for key, ids in found.items() if key[place] == choice}
                for choice in choices
            ]
            for some, more in pairwise(others):
                assert some != more, "a setting that never matters tests nothing"
