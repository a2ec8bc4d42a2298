"""Ids of the special pieces in the published WikiSum vocabulary; vocabularies trained by raysum have the same.

Here, without torch, as preparing processes need them too.
"""

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<T>", "<S>", "</S>", "<PAD>", "<P>", "<Q>")
UNK, _, _, TITLE_END, BOS, EOS, PAD, PARAGRAPH_END, SENTENCE_END = range(len(SPECIAL_PIECES))
