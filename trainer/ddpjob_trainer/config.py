"""The trainer's configuration: the one model behind config files, `--config-json` and a DDPJob's `spec.trainer`.

Keys are camelCase and flat. Importable without torch. The JSON schema of `TrainerConfig` goes into the CRD. It knows no
recipe: a field that the user leaves out is None until `resolve` takes it from the recipe's defaults.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.limits import Limits

_Epochs = Annotated[int, Field(ge=1, le=100_000)]
_BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
_LearningRate = Annotated[float, Field(ge=0, le=100)]
_WarmupEpochs = Annotated[float, Field(ge=0, le=100_000)]
_Step = Annotated[int, Field(ge=0, le=1_000_000_000)]
_ImportPath = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
_PROFILE_STEPS = "profileSteps must hold two steps, the second one greater by at most 100, for example [100, 110]"
_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A recipe's values of the fields that a user may leave out."""

    epochs: int
    global_batch_size: int
    #: For `global_batch_size`; with another one the default is in proportion (Goyal et al. 2017, section 2.1).
    learning_rate: float
    warmup_epochs: float
    weight_decay: float
    momentum: float


class TrainerConfig(BaseModel):
    """The configuration of a training. It is immutable, refuses unknown keys and bounds every value."""

    model_config = ConfigDict(
        alias_generator=to_camel, allow_inf_nan=False, extra="forbid", frozen=True, validate_default=True
    )

    recipe: str = Field(
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*(:[A-Za-z_][A-Za-z0-9_]*)?$",
        description="Model, data set and augmentation: the name of a built-in recipe, or module:object, which names"
        " an object of a Python module in the image.",
    )
    epochs: _Epochs | None = Field(
        default=None, description="Passes over the training data. The default is the recipe's."
    )
    global_batch_size: _BatchSize | None = Field(
        default=None,
        description="Samples in one optimizer step over all ranks together, whatever their number. The default"
        " is the recipe's.",
    )
    per_process_batch_size: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Samples in one optimizer step of each rank. It replaces globalBatchSize, which becomes this times"
        " the number of ranks. 0 uses globalBatchSize.",
    )
    learning_rate: _LearningRate | None = Field(
        default=None,
        description="Peak learning rate, reached at the end of the warm-up. The default is the recipe's, in"
        " proportion to the global batch size.",
    )
    warmup_epochs: _WarmupEpochs | None = Field(
        default=None,
        description="Epochs of linear rise to the peak learning rate; the recipe's decay to zero follows. The default"
        " is the recipe's.",
    )
    weight_decay: _Share | None = Field(
        default=None,
        description="L2 penalty on weights; most recipes exempt biases and normalisation parameters. The default"
        " is the recipe's.",
    )
    momentum: _Share | None = Field(default=None, description="Momentum of the optimizer. The default is the recipe's.")
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Source of all randomness: initial weights, order of samples, augmentation, dropout.",
    )
    log_every_steps: int = Field(default=10, ge=1, le=1_000_000, description="Steps between two log lines of rank 0.")
    evaluation_batch_size: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Held-out samples that a rank evaluates at once. It changes memory use and speed, not the result.",
    )
    max_unreadable_images: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Images that a rank may skip because they cannot be decoded; its log names each. Training takes the"
        " next image instead, evaluation leaves it out. The job fails if there are more.",
    )
    checkpoint_every_steps: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Number of steps between two checkpoints, in addition to those at the end of each epoch. 0 saves only those.",
    )
    profile: Literal["fast", "exact"] = Field(
        default="fast",
        description="exact: bit-identical results of identical runs on the same hardware, with deterministic kernels and without"
        " TF32. fast: the fastest kernels.",
    )
    initial_checkpoint: str = Field(
        default="",
        max_length=4096,
        description="File or URI (s3://bucket/name) with the initial weights, a checkpoint of this trainer or the state_dict of a model. It is used as long"
        " as the job has no checkpoint of its own.",
    )
    # Not "off", which YAML reads as a boolean.
    compile: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: torch.compile is used with the profile fast where it is faster. never: it is not used.",
    )
    sync_batch_norm: bool = Field(
        default=False,
        description="Whether BatchNorm uses the samples of all ranks, on GPUs only. By default each rank uses its own samples.",
    )
    bucket_cap_mb: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Size of DDP's gradient buckets in MiB. 0 uses the default of PyTorch (25).",
    )
    gradient_compression: Literal["none", "bf16"] = Field(
        default="none", description="bf16: gradients are sent between ranks in bfloat16, which halves the traffic."
    )
    first_step_timeout_seconds: int = Field(
        default=600,
        ge=1,
        le=31_536_000,
        description="Longest time without progress until the first step is done. Then the run ends and reports the rank that is late.",
    )
    step_timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=31_536_000,
        description="Longest time without progress after the first step; three times as long during evaluation and saving. Both"
        " limits should be less than deadlines.hangSeconds.",
    )
    debug: bool = Field(
        default=False,
        description="Whether torch, DDP and NCCL log their setup and their timing in detail.",
    )
    profile_steps: list[_Step] = Field(
        default=[],
        max_length=2,
        description="Two steps, such as [100, 110]: torch.profiler records those from the first up to the second, at most 100,"
        " on each rank. The traces are next to the spans (DDPJOB_EVENTS_DIR), or else in the checkpoint folder.",
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.size() == 0 || (self.size() == 2 && self[0] < self[1] && self[1] - self[0] <= 100)",
                    "message": _PROFILE_STEPS,
                }
            ]
        },
    )
    observers: list[_ImportPath] = Field(
        default=[],
        max_length=8,
        description="Import paths (module:class) of observers, which send rank 0's metrics to a tracking service.",
    )
    keep_checkpoints: int = Field(
        default=3, ge=1, le=1000, description="Number of checkpoints to keep, the newest ones."
    )
    verify_replicas_every_steps: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Number of steps between two checks that the parameters of all ranks are bit-identical. 0 disables the check.",
    )

    @model_validator(mode="after")
    def _steps_to_profile(self) -> Self:
        if self.profile_steps and not (
            len(self.profile_steps) == 2 and 0 < self.profile_steps[1] - self.profile_steps[0] <= 100
        ):
            raise PydanticCustomError("steps_to_profile", _PROFILE_STEPS)
        return self

    @model_validator(mode="after")
    def _one_batch_size(self) -> Self:
        if self.per_process_batch_size and self.global_batch_size is not None:
            raise PydanticCustomError(
                "two_batch_sizes", "both globalBatchSize and perProcessBatchSize are set; set one of them"
            )
        return self

    @property
    def limits(self) -> Limits:
        """How long ranks may make no progress."""
        return Limits(first_step_seconds=self.first_step_timeout_seconds, step_seconds=self.step_timeout_seconds)

    def resolve(self, defaults: Defaults, *, world_size: int) -> "ResolvedConfig":
        """The configuration of a training on that many ranks, with the recipe's defaults for what is not set.

        Raises:
            ConfigError: a value that follows from others is out of its bounds.
        """
        batch_size = self.per_process_batch_size * world_size or self.global_batch_size or defaults.global_batch_size
        values = {to_camel(field): value for field, value in asdict(defaults).items()}
        values["learningRate"] = defaults.learning_rate * batch_size / defaults.global_batch_size
        values |= self.model_dump(by_alias=True, exclude_none=True, exclude={"per_process_batch_size"})
        values["globalBatchSize"] = batch_size
        try:
            resolved = _validated(ResolvedConfig, values)
        except ConfigError as error:
            if not self.per_process_batch_size:
                raise
            where = f"with perProcessBatchSize {self.per_process_batch_size} on {world_size} ranks"
            raise ConfigError(f"{error} ({where})") from None
        return resolved.model_copy(update={"per_process_batch_size": self.per_process_batch_size})


class ResolvedConfig(TrainerConfig):
    """The configuration with every value set, as a training uses it and its checkpoints and evidence record it."""

    epochs: _Epochs
    global_batch_size: _BatchSize
    learning_rate: _LearningRate
    warmup_epochs: _WarmupEpochs
    weight_decay: _Share
    momentum: _Share


def parse_config(values: object) -> TrainerConfig:
    """The configuration that `values`, a mapping with camelCase keys, describes.

    Raises:
        ConfigError: one line for each mistake, which names the key, what was found and what is expected.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"config: found {_shown(values)}; expected a mapping of keys such as recipe and epochs")
    return _validated(TrainerConfig, values)


_Config = TypeVar("_Config", bound=TrainerConfig)


def _validated(model: type[_Config], values: Mapping[str, Any]) -> _Config:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error))) from None


def _lines(error: ValidationError) -> list[str]:
    keys = ", ".join(to_camel(field) for field in TrainerConfig.model_fields)
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"config: unknown key {key}; expected one of: {keys}")
        elif not key:
            lines.append(f"config: {item['msg']}")
        elif item["type"] == "missing":
            lines.append(f"config: {key} is missing; set it, for example to digits")
        else:
            lines.append(
                f"config: {'.'.join(to_camel(str(part)) for part in item['loc'])} is {_shown(item['input'])}; {item['msg'].replace('Input should', 'it should')}"
            )
    return lines


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
