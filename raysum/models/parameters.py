"""How many parameters a spec has, in closed form: no torch, so `raysum config show` can print it at once."""

from raysum.models.specs import (
    GraphSumSpec,
    ModelSpec,
    PredictorSpec,
    RankerSpec,
    Seq2SeqSpec,
    TdmcaSpec,
    TransformerSpec,
    TxlSpec,
)

# What the PHT and VHT papers state for their models (Table 5 and Table 4), by preset. It is 12 bytes a parameter, fp32
# and Adam's two moments, with the output tied to the embedding: exactly so for ft-3, pht and vht, else within 1 %.
PAPERS_MB = {"ft-3": 165.0, "tdmca-3": 131.1, "txl": 130.4, "ht-3-3": 190.8, "pht": 182.4, "vht": 174.5}


def megabytes(spec: ModelSpec, moments: bool = False) -> float:
    """10^6 bytes of the parameters in fp32; with ``moments`` Adam's two numbers for each are counted too."""
    return count_parameters(spec) * (12 if moments else 4) / 1e6


def count_parameters(spec: ModelSpec) -> int:
    """Trainable numbers of the model that ``build(spec)`` makes; tied matrices count once."""
    if isinstance(spec, Seq2SeqSpec):
        return _embedding(spec) + _seq2seq(spec)
    if isinstance(spec, TdmcaSpec):
        return _embedding(spec) + _tdmca(spec)
    if isinstance(spec, TxlSpec):
        return _embedding(spec) + _txl(spec)
    if isinstance(spec, GraphSumSpec):
        return _embedding(spec) + _graphsum(spec)
    return _ranker(spec) if isinstance(spec, RankerSpec) else _predictor(spec)


def _embedding(spec: TransformerSpec) -> int:
    d, v = spec.width, spec.vocabulary
    return v * d + (v if spec.tied_output else d * v + v)


def _final_norm(spec: TransformerSpec) -> int:
    return _norm(spec.width) if spec.norm == "pre" else 0


def _seq2seq(spec: Seq2SeqSpec) -> int:
    encoder = sum(_global(spec) if letter == "G" else _block(spec) for letter in spec.encoder)
    decoder = sum(_block(spec) + _norm(spec.width) + _cross(spec, letter) for letter in spec.decoder)
    return 2 * _final_norm(spec) + encoder + decoder + ("P" in spec.decoder) * _paragraph_pooling(spec)


def _tdmca(spec: TdmcaSpec) -> int:
    d = spec.width
    convolutions = 2 * (spec.compression * d * d + d)
    return len(spec.layers) * _block(spec) + spec.layers.count("M") * convolutions + _final_norm(spec)


def _txl(spec: TxlSpec) -> int:
    d = spec.width
    # query, key, value, distance, output; u and v are shared by the layers
    layer = 5 * _square(d, bias=False) + _ffn(d, spec.ffn) + 2 * _norm(d)
    return spec.layers * layer + 2 * d + _final_norm(spec)


def _graphsum(spec: GraphSumSpec) -> int:
    d, size = spec.width, spec.width // spec.heads
    pooling = _norm(d) + (d + 1) * spec.heads + 2 * _square(d)
    centre = _square(size) + size
    cross = 2 * _attention(d) + centre + 2 * d * d + d
    encoder = (spec.local_layers + spec.graph_layers) * _block(spec) + pooling
    return encoder + spec.decoder_layers * (_block(spec) + _norm(d) + cross) + 3 * _final_norm(spec)


def _ranker(spec: RankerSpec) -> int:
    e, h = spec.width, spec.hidden
    lstm = 4 * h * (e + h) + 8 * h  # torch's LSTM has two biases
    return spec.vocabulary * e + 2 * lstm + 2 * h * h + h + h + 1


def _predictor(spec: PredictorSpec) -> int:
    block = _attention(spec.width) + _ffn(spec.width, spec.ffn) + 2 * _norm(spec.width)
    return spec.layers * block + spec.width + 1


def _norm(width: int) -> int:
    return 2 * width


def _square(width: int, bias: bool = True) -> int:
    return width * width + (width if bias else 0)


def _attention(width: int) -> int:
    return 4 * _square(width)  # query, key, value, output


def _ffn(width: int, hidden: int) -> int:
    return 2 * width * hidden + hidden + width


def _block(spec: TransformerSpec) -> int:
    return _attention(spec.width) + _ffn(spec.width, spec.ffn) + 2 * _norm(spec.width)


def _global(spec: Seq2SeqSpec) -> int:
    d, heads = spec.width, spec.pooling_heads
    size, code = d // heads, spec.form == "code"
    score = heads * (d + code)
    # query, key, value shared by all heads; or those and W_c for each head
    inside = 3 * _square(size) if code else 4 * heads * _square(size, bias=False)
    norms = _norm(size) + _norm(d) * (2 if code or spec.norm == "pre" else 1)
    return score + 2 * _square(d, code) + inside + _ffn(d, spec.ffn) + norms


def _cross(spec: Seq2SeqSpec, letter: str) -> int:
    contexts_norm = _norm(spec.width) if letter == "V" and spec.form == "code" else 0
    return _attention(spec.width) * (1 if letter == "F" else 2) + contexts_norm


def _paragraph_pooling(spec: Seq2SeqSpec) -> int:
    d, code = spec.width, spec.form == "code"
    scorer = d if code else d // spec.pooling_heads
    return 2 * _square(d, code) + scorer + _ffn(d, spec.ffn) + _norm(d) * (2 if code else 1)
