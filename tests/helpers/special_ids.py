"""The ids of the published vocabulary's special pieces, by name."""

from raysum.tokenizers.special_tokens import SPECIAL_PIECES

UNK, MASK, _, TITLE_END, BOS, EOS, PAD, PARAGRAPH_END, SENTENCE_END = range(len(SPECIAL_PIECES))
