"""generation_config.json of a published folder as decoding settings, and back."""

import json
from pathlib import Path
from typing import Any

from raysum.config.decoding import DecodeConfig
from raysum.errors import UserError
from raysum.models.specs.family import FamilySpec
from raysum.tokenizers.published import Files

_FORCED = ("forced_bos_token_id", "forced_eos_token_id")
_SEARCH = ("num_beams", "length_penalty", "no_repeat_ngram_size", "early_stopping", "repetition_penalty",
           "encoder_no_repeat_ngram_size")  # fmt: skip
# The former count the start of a target, and ours do not; the latter win, and do not count it either.
_LENGTHS = {"min_length": "min_new_tokens", "max_length": "max_new_tokens"}
_WORDS = ("bad_words_ids", "suppress_tokens")
_APPLIED = {*_SEARCH, *_FORCED, *_LENGTHS, *_LENGTHS.values(), *_WORDS, "eos_token_id", "decoder_start_token_id"}
_THEIRS = {"length_penalty": 1.0, "no_repeat_ngram_size": 0}  # of transformers, where a folder tells of beams alone

# Other keys that change what transformers writes, and the values by which they change nothing. They are known by name
# because a folder without generation_config.json has them in config.json, among those of the model.
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "top_h": None, "typical_p": 1.0,
             "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}  # fmt: skip
_OTHERS = {"do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0,
           "guidance_scale": 1.0, "num_return_sequences": 1, "renormalize_logits": False, "token_healing": False,
           "exponential_decay_length_penalty": None, "begin_suppress_tokens": None, "sequence_bias": None,
           "stop_strings": None, "max_time": None, "penalty_alpha": None, "dola_layers": None, "constraints": None,
           "force_words_ids": None, "watermarking_config": None, "prefix": None}  # fmt: skip
# Keys of generation_config.json that change nothing in a beam search; any other is reported.
_NEUTRAL = {"pad_token_id", "bos_token_id", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
            "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
            "remove_invalid_values", "low_memory", "use_mtp", "is_assistant", "num_assistant_tokens",
            "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
            "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
            "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile", "prefill_chunk_size",
            "continuous_batching_config", "transformers_version", "_from_model_config", "_commit_hash"}  # fmt: skip


def read_decoding(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the decoding settings that come with the weights, and the keys that raysum does not apply.

    Where there are no settings, those of the task of summarization count. A search with several beams is
    transformers' own, also in its defaults; ``early_stopping`` null, as an export writes it, is raysum's.
    """
    files = Files(folder)
    told, is_own_file = _known(files.generation), files.generation is not files.config
    if not told.keys() & {*_SEARCH, *_LENGTHS, *_LENGTHS.values(), *_WORDS}:
        told |= _known(files.task("summarization"))
    if told.get("force_bos_token_to_be_generated"):  # of older configs
        told.setdefault("forced_bos_token_id", files.id("bos_token_id"))
    found = {name: told[name] for name in (*_SEARCH, *_FORCED) if told.get(name) is not None}
    if found.get("num_beams", 1) != 1:
        found = _THEIRS | ({} if "early_stopping" in files.generation else {"early_stopping": False}) | found
    for ours, theirs in _LENGTHS.items():
        if isinstance(told.get(theirs), int):
            found[ours] = told[theirs]
        elif isinstance(told.get(ours), int):
            found[ours] = max(told[ours] - 1, 0)
    if words := _words(folder, told, files.id("eos_token_id")):
        found["bad_words_ids"] = words
    return found, {name: told[name] for name in told if _is_ignored(name, told, is_own_file)}


def _known(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}


def _words(folder: Path, told: dict[str, Any], end: int | None) -> list[list[int]]:
    """The token sequences that are never written; as in transformers, a bad word is not the end alone."""
    words, tokens = (told.get(name) or [] for name in _WORDS)
    try:
        found = {tuple(word) for word in words if word != [end]} | {(token,) for token in tokens}
        return [[*word] for word in sorted(found)]
    except TypeError:
        raise UserError(f"{folder} has {' or '.join(_WORDS)} that are not lists of ids; copy its files again") from None


def _is_ignored(name: str, told: dict[str, Any], is_own_file: bool) -> bool:
    """Whether a key may change what transformers writes, and raysum does not apply it."""
    if name in ("eos_token_id", "decoder_start_token_id"):
        return isinstance(told[name], list) and len(told[name]) > 1  # the first one is applied
    usual = _OTHERS | (_SAMPLING if told.get("do_sample") else {})
    if name in usual:
        return bool(told[name] != usual[name])
    return is_own_file and name not in _APPLIED | _NEUTRAL | _SAMPLING.keys()


def save_decoding(folder: Path, spec: FamilySpec, settings: DecodeConfig) -> None:
    """Write generation_config.json; its lengths count the start of a target, which ours do not.

    Where ``early_stopping`` is null transformers takes false, and an import raysum's own search, as it was.
    """
    marks, words = spec.marks, settings.bad_words_ids
    found = {
        "decoder_start_token_id": marks.start,
        "eos_token_id": marks.end,
        "pad_token_id": marks.pad,
        **{name: getattr(settings, name) for name in (*_SEARCH, *_FORCED)},
        "min_length": settings.min_length and settings.min_length + 1,
        "max_length": settings.max_length + 1,
        "bad_words_ids": [word for word in words if len(word) > 1] or None,
        "suppress_tokens": [word[0] for word in words if len(word) == 1] or None,
    }
    (folder / "generation_config.json").write_text(json.dumps(found, indent=2) + "\n")
