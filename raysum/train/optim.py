"""The learning rate as a function of the step, and the config dict of DeepSpeed."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from raysum.config.loading import load_config, merge, presets
from raysum.config.problems import did_you_mean, keys
from raysum.config.sections import Config, OptimConfig
from raysum.errors import UserError
from raysum.runtime.processes import quiet_training
from raysum.stream.random_rows import has_random_rows

_OURS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "scheduler", "checkpoint")
_PRECISIONS = ("bf16", "fp16", "torch_autocast")
UNMEASURED = "train.batch_tokens=auto cannot measure a {}: set a number"
_OPTIMIZERS = {"adam": "AdamW", "adam_l2": "Adam", "adagrad": "Adagrad"}


def learning_rate(optim: OptimConfig, width: int, step: int, steps: int) -> float:
    """Return the learning rate of update ``step`` (counted from 1) of ``steps``.

    ``noam`` is "Attention is all you need", eq. 3, times ``optim.lr``, for a model of ``width``. ``transformers`` is
    that library's get_linear_schedule_with_warmup, which counts steps from 0.
    """
    warm = optim.warmup_steps
    if optim.schedule == "transformers":
        done = step - 1
        return optim.lr * (done / warm if done < warm else max(0, steps - done) / max(1, steps - warm))
    if optim.schedule == "noam":
        return optim.lr * width**-0.5 * min(step**-0.5, step * warm**-1.5 if warm else step**-0.5)
    rate = optim.lr * min(1.0, step / warm if warm else 1.0)
    if optim.schedule == "constant" or step <= warm:
        return rate
    return rate * max(0.0, (steps - step + 1) / (steps - warm + 1))


def rates(config: Config, step: int) -> dict[str, float]:
    """Return ``lr`` of update ``step``, and ``new_lr`` if new parameters have their own rate."""
    optim = config.optim
    rate = learning_rate(optim, config.model.width, step, config.train.steps)
    return {"lr": rate} if optim.new_lr is None else {"lr": rate, "new_lr": rate * optim.new_lr / optim.lr}


def check_start(config: Config) -> None:
    """Raises UserError if a setting distinguishes new from loaded parameters, and no weights are loaded."""
    for key, is_set in (("optim.new_lr", config.optim.new_lr is not None), ("adapters.rank", config.adapters.rank > 0)):
        if is_set and not config.train.init_from:
            raise UserError(f"{key} needs weights to start from: set train.init_from=RUN, or remove it")


def check_batch_tokens(config: Config) -> None:
    """Raises UserError if ``train.batch_tokens=auto`` does not apply to the model."""
    if not has_random_rows(config.model):
        raise UserError(UNMEASURED.format(config.model.system))


def schedule_warning(config: Config) -> str | None:
    """Return a warning if the learning rate is still rising when the training ends."""
    optim, steps, width = config.optim, config.train.steps, config.model.width
    if steps >= optim.warmup_steps:
        return None
    reached, peak, fix = learning_rate(optim, width, steps, optim.warmup_steps), optim.lr, ""
    if optim.schedule == "noam":  # a shorter warm-up alone would raise its peak
        peak = learning_rate(optim, width, optim.warmup_steps, steps)
        fix = f"optim.schedule=linear optim.lr={peak:.1e} "
    return (
        f"optim.warmup_steps={optim.warmup_steps} does not end within train.steps={steps}: the largest rate will be "
        f"{reached:.1e}, {100 * reached / peak:.1f} % of the schedule's; set {fix}optim.warmup_steps={steps // 10}"
    )


def check_engine_config(config: Config) -> None:
    """Raises UserError if the ``deepspeed`` block has keys that raysum sets, or that DeepSpeed rejects."""
    block, zero = config.deepspeed, config.deepspeed.get("zero_optimization")
    if ours := [key for key in _OURS if key in block]:
        fix = "use train.batch_tokens, train.micro_batches and optim.* instead"
        raise UserError(f"deepspeed.{ours[0]} is set by raysum; {fix}")
    for part, section in zero.items() if isinstance(zero, dict) else ():
        if isinstance(section, dict) and section.get("device") == "nvme":  # it compiles an I/O library
            raise UserError(f"deepspeed.zero_optimization.{part}.device=nvme is not supported: set it to cpu")
    segment, limit = config.model.target_segment, config.source.target_tokens
    if isinstance(zero, dict) and zero.get("stage") == 3 and segment and limit > segment:
        raise UserError(
            f"targets have up to {limit} tokens and a segment {segment}: at ZeRO-3, workers with targets of different "
            "numbers of segments wait for each other forever; set deepspeed.zero_optimization.stage=2, "
            f"model.segment={limit}, or source.target_tokens={segment}"
        )
    if any(block == load_config(name).deepspeed for name in presets()):
        return  # valid, and DeepSpeed takes seconds to load
    known = set[str]()
    for key, value in block.items():
        _check_block({key: value}, f"deepspeed.{key}", known)
    _check_block(block, "deepspeed", known)
    for key in sorted(block.keys() - known):
        near = did_you_mean(key, sorted(known))
        raise UserError(f"unknown key 'deepspeed.{key}'; {near}DeepSpeed has no such key")


def _check_block(block: dict[str, Any], name: str, known: set[str]) -> None:
    """Add the keys that DeepSpeed reads to ``known``. Raises UserError with ``name`` if it rejects the ``block``."""
    quiet_training()
    from deepspeed.runtime.config import DeepSpeedConfig

    recording = _RecordingDict(block, train_batch_size=1)
    recording.read = known
    try:
        DeepSpeedConfig(recording)
        clipping = block.get("gradient_clipping", 0.0)
        if not isinstance(clipping, int | float) or not 0 <= clipping <= 1e9:
            raise ValueError(f"must be a number from 0 to 1e9, not {clipping!r}")
    except ValidationError as error:
        raise UserError("\n".join(_explain(name, error))) from None
    except Exception as error:  # DeepSpeed has no exception class for a wrong config
        reason, values = " ".join(str(error).split()) or type(error).__name__, [*block.values()]
        if isinstance(error, TypeError | AttributeError) and not isinstance(values[0], dict):
            reason = f"must be a section of keys and values, not {values[0]!r}"
        raise UserError(f"DeepSpeed rejects {name}: {reason}") from None


def _explain(section: str, error: ValidationError) -> Iterator[str]:
    """Yield a line for each problem of a ``section`` of DeepSpeed, with the key and the allowed values."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    models = {model.__name__: model for model in DeepSpeedConfigModel.__subclasses__()}
    for problem in error.errors():
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            near = did_you_mean(key, keys(models[error.title]) if error.title in models else ())
            yield f"unknown key '{section}.{key}'; {near}DeepSpeed has no such key"
        else:  # DeepSpeed's message repeats the last allowed value
            message = re.sub(r", (.+) or \1$", r" or \1", problem["msg"].removeprefix("Value error, "))
            yield f"DeepSpeed rejects {section}.{key}: {message} (got {problem['input']!r:.200})".replace(".:", ":")


class _RecordingDict(dict[str, Any]):
    """A dict that adds the keys that are read to ``read``: DeepSpeed ignores unknown keys without a message."""

    read: set[str]

    def __getitem__(self, key: Any) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self.read.add(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self


def engine_config(config: Config, world: int, cuda: bool, universal: bool = False) -> dict[str, Any]:
    """Return DeepSpeed's config: the keys that raysum sets, changed by the user's ``deepspeed`` block.

    The optimizer is torch's AdamW, Adam or Adagrad, so nothing is compiled. DeepSpeed has no scheduler: the worker sets
    the rate before each step. The default precision is bf16 on CUDA and fp32 on CPU; gradients are summed in fp32.
    ``universal`` is true if a checkpoint in DeepSpeed's universal form will be loaded.
    """
    kind, params = config.optim.method, config.optim.model_dump(include={"lr", "eps", "weight_decay"})
    if kind != "adagrad":
        params |= {"betas": config.optim.betas, "torch_adam": True, "adam_w_mode": kind == "adam"}
        params |= {"fused": True} if cuda else {}  # one kernel for all parameters, instead of ten
    ours = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": config.train.micro_batches // world,
        "optimizer": {"type": _OPTIMIZERS[kind], "params": params},
        "communication_data_type": "fp32",
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 60,
        "wall_clock_breakdown": False,
        "checkpoint": {"load_universal": universal},
    }
    if cuda and not any(key in config.deepspeed for key in _PRECISIONS):
        ours["bf16"] = {"enabled": True}
    if config.deepspeed.get("zero_optimization", {}).get("stage", 0):  # engine.build_engine handles stage 0
        ours["data_types"] = {"grad_accum_dtype": "fp32"}
    return merge(ours, config.deepspeed)


def compiles_layers(config: Config) -> bool:
    """Return whether layers are compiled: if asked for, and never at ZeRO-3, whose hooks interrupt them."""
    return (
        config.train.compile
        and config.model.compiles
        and config.deepspeed.get("zero_optimization", {}).get("stage", 0) < 3
    )


def precision(config: Config, cuda: bool) -> str:
    """Return the precision of :func:`engine_config`: ``fp32``, ``bf16``, ``fp16`` or ``autocast``."""
    engine = engine_config(config, 1, cuda)
    chosen = [key for key in _PRECISIONS if engine.get(key, {}).get("enabled")]
    return chosen[0].removeprefix("torch_") if chosen else "fp32"
