"""Tiny models of transformers with random weights, saved as folders, and their inputs."""

from pathlib import Path

import torch

FAMILIES = ("bart", "mbart", "pegasus", "led", "t5", "t5-gated")
WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 90


def published(name: str, folder: Path, seed: int = 0, **changes):
    """A model of ``name``, every parameter and buffer drawn, saved to ``folder``."""
    import transformers

    torch.manual_seed(seed)
    model = getattr(transformers, _CLASSES[name])(config_of(name, **changes)).eval()
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
}


def config_of(name: str, **changes):
    import transformers

    if name.startswith("t5"):
        own = {"d_kv": 12, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS, "d_model": WIDTH, "pad_token_id": 0}
        own |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if name == "t5-gated" else {}
        own |= {"decoder_start_token_id": 0, "dropout_rate": 0.0}
        return transformers.T5Config(**({"vocab_size": VOCABULARY} | own | changes))
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
_CONFIGS = {"bart": "BartConfig", "mbart": "MBartConfig", "pegasus": "PegasusConfig", "led": "LEDConfig"}


def sequences(lengths, seed: int = 1) -> list[torch.Tensor]:
    """Ids of each length, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(7, VOCABULARY, (length,), generator=generator) for length in lengths]
