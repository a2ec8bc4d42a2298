"""The candidates of a step of beam search: the tokens that may extend its hypotheses, and the best of them.

B examples, R beams, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent, block_sequences, penalize_repetition
from raysum.decode.hypotheses import LiveHypotheses
from raysum.tokenizers.special_tokens import SpecialTokens

CHUNK = 128  # candidates under one maximum; 64 is equally fast


class Rules:
    """The tokens that may extend the hypotheses of a search, by its settings."""

    def __init__(
        self,
        settings: DecodeConfig,
        marks: SpecialTokens,
        mask: Tensor,
        exempt: Sequence[int],
        prompt: Tensor | None,
        source: Tensor | None,
    ):
        """``mask`` [B, M]: the real paragraphs of the examples; the others as in ``beam.SearchOptions``."""
        self._settings, self._marks = settings, marks
        self._commas = torch.tensor(exempt, dtype=torch.long, device=mask.device)
        # The blocked sequences [B, 1, N, size] of each size: bad words, and n-grams of the source.
        words, size = settings.bad_words_ids, settings.encoder_no_repeat_ngram_size
        by_size = [[word for word in words if len(word) == length] for length in {*map(len, words)}]
        self._blocked = [torch.tensor(same, device=mask.device).expand(len(mask), 1, -1, -1) for same in by_size]
        if source is not None and 0 < size <= source.shape[1]:
            self._blocked.append(source.unfold(1, size, 1)[:, None])
        # The tokens [B] that hypotheses must have, by position from 1; padding if an example is free there.
        begin = () if prompt is None else marks.target_prefix
        if settings.forced_bos_token_id is not None:
            begin = (settings.forced_bos_token_id, *begin[1:])
        starts = torch.tensor(begin, dtype=torch.long, device=mask.device).expand(len(mask), -1)
        prompts = starts if prompt is None else torch.cat((starts, prompt), 1)
        self.forced = dict(enumerate(prompts.unbind(1), 1))
        if settings.forced_eos_token_id is not None:
            self.forced[settings.max_length] = starts.new_full((len(mask),), settings.forced_eos_token_id)

    def candidates(
        self, logits: Tensor, live: LiveHypotheses, forced: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf if
        blocked.

        The third result, [B, R], is true for hypotheses without a candidate. EOS is -inf in [B, R, V]; in [B, R] it is
        -inf up to the minimum length and inside a name, unless there is no other candidate. Tokens that continue a name
        are never repetitions. As in transformers, the penalty for repetition applies to logits if there is one beam,
        otherwise to log-probabilities. ``forced``: the tokens of all examples of the search at this position.
        """
        settings, tokens, names, end = self._settings, live.tokens, live.names, self._marks.end
        length, scores = live.length, logits.float().view(*live.log_prob.shape, -1)
        if scores.shape[1] == 1:
            penalize_repetition(scores, tokens, settings.repetition_penalty)
        log_probs = scores.log_softmax(-1)
        if scores.shape[1] > 1:
            penalize_repetition(log_probs, tokens, settings.repetition_penalty)
        log_probs += live.log_prob[..., None]
        for sequences in self._blocked:
            block_sequences(log_probs, tokens, length, sequences[live.history.examples])
        eos = log_probs[..., end].clone()
        log_probs[..., end].fill_(-torch.inf)
        continued = names.mask(log_probs) if names else None
        separator = None if settings.block_across_sentences else self._marks.sentence_end
        block_ngrams(log_probs, tokens, length, settings.no_repeat_ngram_size, separator)
        block_recent(log_probs, tokens, length, settings.no_repeat_last, self._commas)
        if continued:
            log_probs.view(-1).scatter_(0, *continued)
        stuck = log_probs.amax(-1) == -torch.inf
        if settings.min_length or names:
            early = length <= settings.min_length
            eos = eos.masked_fill(~stuck & (early | ~names.whole if names else early), -torch.inf)
        if forced is not None:
            self._force(log_probs, eos, live.log_prob, forced[live.history.examples])
            stuck = log_probs.amax(-1) == -torch.inf
        return log_probs, eos, stuck

    def _force(self, log_probs: Tensor, eos: Tensor, log_prob: Tensor, token: Tensor) -> None:
        """Allow only ``token`` [B], at no cost, except where it is padding."""
        is_forced, is_end = (token != self._marks.pad)[:, None], (token == self._marks.end)[:, None]
        log_probs.masked_fill_(is_forced[..., None], -torch.inf)
        eos.masked_fill_(is_forced, -torch.inf).copy_(torch.where(is_end, log_prob, eos))
        index = token[:, None, None].expand(*log_prob.shape, 1)
        allowed = torch.where(is_forced & ~is_end, log_prob, log_probs.gather(2, index)[..., 0])
        log_probs.scatter_(2, index, allowed[..., None])


def best_in_groups(
    log_probs: Tensor, offset: Tensor, examples: Tensor, groups: int, penalty: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return :func:`best` for each group after the other, each with the penalties of the groups before it.

    Diverse beam search (Vijayakumar et al. 2018, eq. 4) with Hamming diversity: a token loses ``penalty`` for each
    hypothesis of earlier groups that adds it at this step. Penalties stay in the log-probability; EOS has none.
    Group g of an example is the one of ``examples`` [B] that is g modulo ``groups``.
    """
    if groups == 1:
        return best(log_probs, offset)
    parts = [torch.zeros_like(offset, dtype=dtype) for dtype in (torch.long, torch.long, log_probs.dtype)]
    added = log_probs.new_zeros(int(examples.max()) // groups + 1, log_probs.shape[-1])  # hypotheses by example, token
    for group in range(groups):
        rows = (examples % groups == group).nonzero().squeeze(1)
        example = examples[rows] // groups
        found = best(log_probs[rows] - penalty * added[example, None], offset[rows])
        for part, values in zip(parts, found, strict=True):
            part[rows] = values
        _, token, values = found
        index = example[:, None].expand_as(token)
        added.index_put_((index, token), (values > -torch.inf).to(added.dtype), accumulate=True)
    parent, token, log_prob = parts
    return parent, token, log_prob


def best(log_probs: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return beam, token and log-probability [B, R] of the R best candidates by ``log_probs + offset``, best first.

    ``log_probs`` [B, R, V], ``offset`` [B, R]. The best candidates are in the R chunks with the highest maxima, so only
    these are sorted: 8 times as fast as a top-k over all (CPU, 16 examples of 5 x 32,000 candidates).
    """
    beams, vocabulary = log_probs.shape[1:]
    parts = log_probs.split(vocabulary // CHUNK * CHUNK or vocabulary, -1)
    maxima = torch.cat([part.unflatten(-1, (-1, min(CHUNK, part.shape[-1]))).amax(-1) for part in parts], -1)
    chunks = (maxima + offset[..., None]).flatten(1).topk(beams).indices
    beam, first = chunks // maxima.shape[-1], chunks % maxima.shape[-1] * CHUNK
    token = (first[..., None] + torch.arange(CHUNK, device=first.device)).flatten(1)
    beam = beam.repeat_interleave(CHUNK, 1)
    outside = token >= vocabulary
    token = token.clamp_max(vocabulary - 1)
    values = log_probs.flatten(1).gather(1, beam * vocabulary + token).masked_fill(outside, -torch.inf)
    chosen = (values + offset.gather(1, beam)).topk(beams).indices
    return beam.gather(1, chosen), token.gather(1, chosen), values.gather(1, chosen)
