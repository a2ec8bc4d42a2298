"""Convert between generation_config.json of a published folder and decoding settings."""

import json
from pathlib import Path
from typing import Any

from raysum.config.decoding import DecodeConfig
from raysum.errors import UserError
from raysum.models.family.spec import FamilySpec
from raysum.tokenizers.loading import Files

_FORCED = ("forced_bos_token_id", "forced_eos_token_id")
_SEARCH = ("num_beams", "length_penalty", "no_repeat_ngram_size", "early_stopping", "repetition_penalty",
           "encoder_no_repeat_ngram_size")  # fmt: skip
# The first name counts the start of a target, unlike ours; the second one has priority, and does not count it.
_LENGTHS = {"min_length": "min_new_tokens", "max_length": "max_new_tokens"}
_WORDS = ("bad_words_ids", "suppress_tokens")
_APPLIED = {*_SEARCH, *_FORCED, *_LENGTHS, *_LENGTHS.values(), *_WORDS, "eos_token_id", "decoder_start_token_id"}
_DEFAULTS = {"length_penalty": 1.0, "no_repeat_ngram_size": 0}  # of transformers, for a folder that sets only beams

# Other keys that change the output of transformers, and the values with which they have no effect. The list is needed
# because a folder without generation_config.json has them in config.json, among those of the model.
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "top_h": None, "typical_p": 1.0,
             "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}  # fmt: skip
_OTHERS = {"do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0,
           "guidance_scale": 1.0, "num_return_sequences": 1, "renormalize_logits": False, "token_healing": False,
           "exponential_decay_length_penalty": None, "begin_suppress_tokens": None, "sequence_bias": None,
           "stop_strings": None, "max_time": None, "penalty_alpha": None, "dola_layers": None, "constraints": None,
           "force_words_ids": None, "watermarking_config": None, "prefix": None}  # fmt: skip
# Keys of generation_config.json that do not affect a beam search; all others are reported.
_NEUTRAL = {"pad_token_id", "bos_token_id", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
            "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
            "remove_invalid_values", "low_memory", "use_mtp", "is_assistant", "num_assistant_tokens",
            "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
            "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
            "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile", "prefill_chunk_size",
            "continuous_batching_config", "transformers_version", "_from_model_config", "_commit_hash"}  # fmt: skip


def read_decoding(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the decoding settings of the folder, and the keys that raysum does not apply.

    Without settings, those of the summarization task apply. A search with several beams is transformers' own,
    including its defaults; if ``early_stopping`` is null, as an export writes it, it is raysum's.
    """
    files = Files(folder)
    values, is_own_file = _without_none(files.generation), files.generation is not files.config
    if not values.keys() & {*_SEARCH, *_LENGTHS, *_LENGTHS.values(), *_WORDS}:
        values |= _without_none(files.task("summarization"))
    if values.get("force_bos_token_to_be_generated"):  # in older configs
        values.setdefault("forced_bos_token_id", files.id("bos_token_id"))
    settings = {name: values[name] for name in (*_SEARCH, *_FORCED) if values.get(name) is not None}
    if settings.get("num_beams", 1) != 1:
        settings = _DEFAULTS | ({} if "early_stopping" in files.generation else {"early_stopping": False}) | settings
    for ours, theirs in _LENGTHS.items():
        if isinstance(values.get(theirs), int):
            settings[ours] = values[theirs]
        elif isinstance(values.get(ours), int):
            settings[ours] = max(values[ours] - 1, 0)
    if words := _bad_words(folder, values, files.id("eos_token_id")):
        settings["bad_words_ids"] = words
    return settings, {name: values[name] for name in values if _is_ignored(name, values, is_own_file)}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _bad_words(folder: Path, values: dict[str, Any], end: int | None) -> list[list[int]]:
    """Return the token sequences that are never generated; as in transformers, the end alone is none of them."""
    words, tokens = (values.get(name) or [] for name in _WORDS)
    try:
        sequences = {tuple(word) for word in words if word != [end]} | {(token,) for token in tokens}
        return [[*word] for word in sorted(sequences)]
    except TypeError:
        raise UserError(f"{folder} has {' or '.join(_WORDS)} that are not lists of ids: copy its files again") from None


def _is_ignored(name: str, values: dict[str, Any], is_own_file: bool) -> bool:
    """Return whether a key may change the output of transformers, but is not applied by raysum."""
    if name in ("eos_token_id", "decoder_start_token_id"):
        return isinstance(values[name], list) and len(values[name]) > 1  # the first one is applied
    neutral = _OTHERS | (_SAMPLING if values.get("do_sample") else {})
    if name in neutral:
        return bool(values[name] != neutral[name])
    return is_own_file and name not in _APPLIED | _NEUTRAL | _SAMPLING.keys()


def save_decoding(folder: Path, spec: FamilySpec, settings: DecodeConfig) -> None:
    """Write generation_config.json. Its lengths include the start of a target; ours do not.

    For a null ``early_stopping`` transformers assumes false, and an import restores raysum's search.
    """
    marks, words = spec.marks, settings.bad_words_ids
    values = {
        "decoder_start_token_id": marks.start,
        "eos_token_id": marks.end,
        "pad_token_id": marks.pad,
        **{name: getattr(settings, name) for name in (*_SEARCH, *_FORCED)},
        "min_length": settings.min_length and settings.min_length + 1,
        "max_length": settings.max_length + 1,
        "bad_words_ids": [word for word in words if len(word) > 1] or None,
        "suppress_tokens": [word[0] for word in words if len(word) == 1] or None,
    }
    (folder / "generation_config.json").write_text(json.dumps(values, indent=2) + "\n")
