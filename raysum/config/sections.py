"""The config sections of a training: strict, frozen pydantic models. This module does not import torch."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    GetPydanticSchema,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from raysum import systems
from raysum.config.base import Count, Minutes, Section, Share
from raysum.config.decoding import DecodeConfig, SourceConfig
from raysum.config.workers import WorkerRange, Workers
from raysum.errors import UserError
from raysum.models.family.spec import Adapters
from raysum.systems import Size

_COUNT: TypeAdapter[int] = TypeAdapter(Count)


class TrainConfig(Section):
    ALIASES: ClassVar[dict[str, str]] = {"start": "init_from"}

    steps: Count = Field(1000, description="optimizer steps")
    minutes: Minutes | None = Field(None, description="stop after this many minutes; `train auto` fits steps to it")
    batch_tokens: Count | Literal["auto"] = Field(
        8000,
        description="maximum source + target tokens of a micro-batch; auto = as many as fit into 80 % of the GPU's "
        "memory that is free at the start, or into half of the CPU's",
    )
    micro_batches: Size = Field(8, description="micro-batches of a step (A); a multiple of the number of workers")
    label_smoothing: Share = 0.1
    seed: int = Field(0, ge=0, lt=2**32)
    workers: WorkerRange = Field(
        1,
        validate_default=True,
        description="Ray Train workers; 0 trains in this process, without Ray; a range such as 2..8 continues with "
        "fewer after the loss of a node, and with more when nodes join",
    )
    threads: int | None = Field(None, gt=0, le=4096, description="CPU threads of each worker; None = cores / workers")
    placement: Literal["spread", "pack"] = Field("spread", description="spread workers over nodes, or pack them on few")
    cpus_per_worker: float | None = Field(
        None, gt=0, le=4096, description="CPUs that each worker reserves on its node; None = 1, or less if CPUs are few"
    )
    gpus_per_worker: float | None = Field(
        None,
        ge=0,
        le=1,
        description="1, 0 (train on CPUs), or the part of a GPU of a training with one worker, so that trials share "
        "GPUs; None = 1 if the cluster has a GPU for each worker, else 0",
    )
    wait_minutes: float = Field(
        0, ge=0, le=10**6, description="minutes to wait for nodes that join the cluster later and can hold the workers"
    )
    address: str | None = Field(None, description="address of a running Ray cluster to join; None = a local one")
    validate_every: Count = Field(500, description="steps between validations")
    validate_examples: Count | None = Field(1000, description="examples of the valid split to use; None = all")
    best_by: str = Field(
        "loss",
        description="metric that selects the best checkpoint: loss, or a metric of `raysum evaluate`, such as rouge2, "
        "of greedy summaries of validate_examples; a minus means lower is better (-unsupported)",
    )
    patience: Count | None = Field(None, description="stop after this many validations in a row without a better one")
    label_examples: Count | None = Field(20000, description="alignment: train examples to label; None = all")
    save_every: Count = Field(500, description="steps between checkpoints")
    save_minutes: Minutes = Field(15, description="also save at the first line of metrics after this many minutes")
    keep: Count = Field(3, description="number of newest checkpoints to keep, besides the best one")
    log_every: Count = Field(10, description="steps between lines of metrics.jsonl")
    trackers: list[Literal["mlflow", "wandb"]] = Field(
        [], description="services that get settings and metrics, also of the trials of a search (extras mlflow, wandb)"
    )
    init_from: str | None = Field(
        None, description="run that provides the initial weights, matched by name; for a bert, a published folder"
    )
    recompute: bool = Field(False, description="recompute layers in the backward pass, which saves memory")
    compile: bool = Field(
        False,
        description="compile layers by torch.compile, meant for a GPU; on a CPU it needs a C++ compiler; at "
        "ZeRO-3, whose layers gather their weights, and in a tdmca or txl they stay uncompiled",
    )
    check_hook_order: int = Field(
        1, ge=0, description="first steps that check the order of gradients on all workers, which ZeRO-2 and 3 need"
    )
    window: Count = Field(64, description="number of row groups that are shuffled and bucketed by length together")

    @property
    def most_tokens(self) -> int:
        """``batch_tokens`` of a training, whose specification has a number for ``auto``. Raises UserError for it."""
        if self.batch_tokens == "auto":
            raise UserError("train.batch_tokens=auto is only for a new training: set a number")
        return self.batch_tokens

    @property
    def best_metric(self) -> str:
        """The metric that selects the best checkpoint, by its name in metrics.jsonl."""
        return f"valid_{self.best_by.removeprefix('-')}"

    def validation_score(self, value: float) -> float:
        """Return a ``value`` of that metric as a score: the higher, the better."""
        return -value if self.best_by == "loss" or self.best_by.startswith("-") else value

    @field_validator("batch_tokens", mode="before")
    @classmethod
    def _check_tokens(cls, value: Any) -> Any:
        try:
            if value != "auto":
                _COUNT.validate_python(value)
        except ValidationError:
            raise ValueError("must be a number from 1 to 1,000,000,000, or auto") from None
        return value

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.workers and not self.workers.counts(self.micro_batches):
            allowed = ", ".join(map(str, Workers(self.micro_batches, 1).counts(self.micro_batches)[::-1]))
            workers = f"{self.workers.least} to {self.workers}" if self.workers.is_range else self.workers
            problem = f"{workers} workers do not divide micro_batches {self.micro_batches}"
            raise ValueError(f"{problem}; use one of {allowed} workers")
        if self.workers > 1 and self.gpus_per_worker not in (None, 0, 1):
            part = f"gpus_per_worker {self.gpus_per_worker:g} is for one worker"
            raise ValueError(f"{part}, as {self.workers} workers cannot share a GPU: use 0 or 1")
        return self


class OptimConfig(Section):
    """``noam`` is the schedule of Vaswani et al. 2017, eq. 3: ``lr * width^-0.5 * min(t^-0.5, t * w^-1.5)``."""

    method: Literal["adam", "adam_l2", "adagrad"] = Field(
        "adam",
        description="adam decays weights as AdamW does; adam_l2 adds an L2 penalty before Adam scales the gradient, as "
        "HIBERT does; adagrad has no betas (HT's ranker)",
    )
    lr: float = Field(2.0, gt=0, le=1e4, description="factor of the schedule ('noam') or peak rate (other schedules)")
    new_lr: Annotated[float, Field(gt=0, le=1e4)] | None = Field(
        None, description="lr of parameters that are not trained yet at the start (new layers, adapters); None = lr"
    )
    schedule: Literal["noam", "constant", "linear", "transformers"] = Field(
        "noam",
        description="'constant' and 'linear' warm up linearly; 'linear' then falls to 0 at train.steps; 'transformers' "
        "is the linear schedule of that library, which starts a warm-up at rate 0",
    )
    warmup_steps: int = Field(8000, ge=0, le=10**9)
    betas: tuple[Share, Share] = (0.9, 0.998)
    eps: float = Field(1e-9, ge=1e-30, le=1)
    weight_decay: float = Field(
        0.0, ge=0, le=1e4, description="decoupled; for adam_l2 and adagrad, factor of the weights added to gradients"
    )
    decay: Literal["all", "matrices"] = Field("all", description="parameters that decay: all, or no biases and norms")


class LoadConfig(Section):
    """How a run is loaded to write summaries."""

    checkpoint: str = Field("best", description="best, latest, a step, or average:3 (the mean weights of the 3 best)")
    dtype: Literal["fp32", "bf16", "int8"] = Field(
        "fp32", description="precision of matrix products: fp32, bf16, or int8 (on CPUs)"
    )
    decode: dict[str, Any] = Field(default_factory=dict, description="decoding settings that change those of the run")


def _spec(value: Any) -> systems.Spec:
    """Return a spec unchanged, or a mapping as the spec class of its ``system``."""
    if isinstance(value, systems.Spec):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a section with keys such as system, width and heads")
    name = systems.current(value.get("system", systems.DEFAULT))
    return systems.spec_class(name).model_validate(value | {"system": name})


def _schema(_: Any, handler: Any) -> dict[str, Any]:
    """Return the JSON schema of a model: the schema of any system."""
    return {"anyOf": [handler(spec.__pydantic_core_schema__) for spec in systems.spec_classes()]}


ModelSpec = Annotated[SerializeAsAny[systems.Spec], PlainValidator(_spec), GetPydanticSchema(None, _schema)]


class Config(Section):
    """All settings of one training, decoding or search; written to the run folder before the first step."""

    model: ModelSpec = Field(default_factory=lambda: _spec({}))
    source: SourceConfig = Field(default_factory=SourceConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    adapters: Adapters = Field(default_factory=Adapters)
    deepspeed: dict[str, Any] = Field({}, validate_default=True, description="DeepSpeed's config without batch sizes")
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    data: str | None = Field(None, description="dataset folder; data=[A, B] mixes B into the train split of A")
    mixed: list[str] = Field([], description="datasets with train splits that are mixed into that of data")
    data_weights: list[Annotated[float, Field(gt=0, le=1e6)]] = Field(
        [], description="relative numbers of rows from data and from each of mixed; empty = the sizes of the datasets"
    )
    out: str | None = Field(None, description="run folder to write")
    run: str | None = Field(None, description="run folder to read (alignment, search)")

    @model_validator(mode="before")
    @classmethod
    def _part(cls, values: Any) -> Any:
        """Split a list of datasets under ``data`` into the first and those mixed into it."""
        if not isinstance(values, dict) or not isinstance(data := values.get("data"), list) or not data:
            return values
        return values | {"data": data[0], "mixed": data[1:]}

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.train.recompute and not self.model.recomputes:
            raise ValueError(f"train.recompute does not work with a {self.model.system}: set train.recompute=false")
        datasets, weights = 1 + len(self.mixed), len(self.data_weights)
        if weights and weights != datasets:
            raise ValueError(f"data_weights has {weights} numbers for {datasets} datasets; set one for each dataset")
        return self

    @field_validator("deepspeed")
    @classmethod
    def _check_deepspeed(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"must have only values that JSON has: {error}") from None
        return {"gradient_clipping": 0.0, **value}  # DeepSpeed's default is 1.0
