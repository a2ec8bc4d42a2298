"""Models: one family of encoder-decoders by layer mix, and the systems beside it.

Where the published codes (nlpyang/hiersumm for HT and FT, yema2018/wiki_sum for PHT and VHT) differ from their
papers, ``form: code`` computes what the code computes and ``form: paper`` the equations:

========================  ====================================  ==============================================
place                     paper                                 code
========================  ====================================  ==============================================
HT eq. 9                  [rank ; token position]               [token position ; rank]
HT eq. 13-15              no biases                             biases, dropout on the weights
HT eq. 16                 LN(W_c sum), W_c a head               LN(sum); one LayerNorm of size d_head for all heads
HT eq. 17-19              matrices of each head, no bias        one matrix for all heads, with bias
HT eq. 20                 no scale                              scaled by d_head^-0.5
HT eq. 21                 no bias                               bias, dropout
HT eq. 22-23              LN(x + FFN(x + c))                    y = x + c; y + FFN(LN(y))
PHT eq. 2-4               no biases                             biases on W1 and W3
PHT eq. 3                 one W2, no scale                      one W2 a head (never trained there), d_head^-0.5
PHT eq. 5                 W3's output as it is                  dropout and LayerNorm after W3
VHT eq. 11                contexts + ranks                      dropout and LayerNorm after the sum
========================  ====================================  ==============================================

Differences that have options of their own, set by the presets: ``norm`` (HT: paper post, code pre with one final
LayerNorm; PHT and VHT: post), ``sinusoid`` (PHT's and VHT's code: all sines, then all cosines), ``tied_output`` (HT:
tied, PHT and VHT: not), ``ffn_dropout`` and ``attention_dropout`` (HT's code: at the common rate; PHT's and VHT's:
none). Where a mix has no published model, the options mean the same: any norm, form and letters go together.

The systems beside the family follow their papers where these give equations, and their codes where the papers are
silent; each file says where. All summarizing models have the face of ``generator.Generator``: the objective, beam
search and citations need no more. Decoder-only ones (``prefix``) read the source as the beginning of the target.

HT's ablations: w/o PP is ``positions=paragraph``, w/o MP ``pooling_heads=1``, w/o GT an encoder without ``G``.
"""
