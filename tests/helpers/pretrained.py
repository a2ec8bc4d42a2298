"""Tiny models of transformers with random weights, saved as folders, and their inputs."""

from pathlib import Path

import torch

FAMILIES = ("bart", "mbart", "pegasus", "led", "t5", "t5-gated", "mt5", "umt5")
UNTIED = ("bart-untied", "mbart-untied", "pegasus-untied", "led-untied", "t5-untied")  # all matrices of tokens differ
WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 90


def published(name: str, folder: Path, seed: int = 0, **changes):
    """A model of ``name``, every parameter and buffer drawn, saved to ``folder``.

    Of T5, v1.1 and what followed have an output layer of their own, which transformers never makes but loads.
    """
    import transformers

    torch.manual_seed(seed)
    family, is_untied = name.removesuffix("-untied"), name in UNTIED
    more = {"tie_word_embeddings": False} if is_untied and family != "t5" else {}
    model = getattr(transformers, _CLASSES[family])(config_of(family, **more | changes)).eval()
    own = [model.lm_head] if "t5" in family and name != "t5" else []
    own += [model.encoder.embed_tokens, model.decoder.embed_tokens] if name == "t5-untied" else []
    for module in own:
        module.weight = torch.nn.Parameter(torch.empty_like(module.weight))
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                value.normal_(std=0.2).add_(1.0 if "norm" in key and key.endswith("weight") else 0.0)
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


_CLASSES = {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "led": "LEDForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "t5-gated": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}


def config_of(name: str, **changes):
    import transformers

    if "t5" in name:
        own = {"d_kv": 12, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS, "d_model": WIDTH, "pad_token_id": 0}
        own |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if name != "t5" else {}
        own |= {"decoder_start_token_id": 0, "dropout_rate": 0.0}
        return getattr(transformers, _CONFIGS[name])(**({"vocab_size": VOCABULARY} | own | changes))
    own = {f"{side}_{part}": size for side in ("encoder", "decoder") for part, size in _SIDES.items()}
    if name == "led":
        own |= {"max_encoder_position_embeddings": 2048, "max_decoder_position_embeddings": 1024, "attention_window": 8}
    else:
        own |= {"max_position_embeddings": 1024, "scale_embedding": name != "bart"}
    own |= {"d_model": WIDTH, "dropout": 0.0, "attention_dropout": 0.0}
    own |= {"activation_dropout": 0.0, "vocab_size": VOCABULARY}
    own |= {"activation_function": "relu" if name == "pegasus" else "gelu"}
    return getattr(transformers, _CONFIGS[name])(**(own | changes))


_SIDES = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 48}
_CONFIGS = {
    "bart": "BartConfig",
    "mbart": "MBartConfig",
    "pegasus": "PegasusConfig",
    "led": "LEDConfig",
    "t5": "T5Config",
    "t5-gated": "T5Config",
    "mt5": "MT5Config",
    "umt5": "UMT5Config",
}


def sequences(lengths, seed: int = 1) -> list[torch.Tensor]:
    """Ids of each length, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(7, VOCABULARY, (length,), generator=generator) for length in lengths]
