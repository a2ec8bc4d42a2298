"""Ids of the special pieces in the published WikiSum vocabulary; vocabularies trained by raysum have the same.

Here, without torch, as preparing processes need them too. No text holds them, and nothing
else uses ``<s>``, which stands for a masked word.
"""

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<T>", "<S>", "</S>", "<PAD>", "<P>", "<Q>")
UNK, MASK, _, TITLE_END, BOS, EOS, PAD, PARAGRAPH_END, SENTENCE_END = range(len(SPECIAL_PIECES))
