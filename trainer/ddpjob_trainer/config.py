"""The trainer's configuration: the one model behind config files, `--config-json` and a DDPJob's `spec.trainer`.

Keys are camelCase and flat. Importable without torch. The JSON schema of `TrainerConfig` goes into the CRD. It knows no
recipe: a field that the user leaves out is None until `resolve` takes it from the recipe's defaults.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, to_jsonable_python

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.limits import Limits

_Epochs = Annotated[int, Field(ge=1, le=100_000)]
_BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
_LearningRate = Annotated[float, Field(ge=0, le=100)]
_WarmupEpochs = Annotated[float, Field(ge=0, le=100_000)]
_Step = Annotated[int, Field(ge=0, le=1_000_000_000)]
#: A number of samples or images, from 0.
_Samples = Annotated[int, Field(ge=0, le=1_000_000)]
_Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
_ImportPath = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
_PROFILE_STEPS = "profileSteps must hold two steps, the second one greater by at most 100, for example [100, 110]"
_Share = Annotated[float, Field(ge=0, le=1)]
_Norm = Annotated[float, Field(ge=0, le=1_000_000)]
_Decay = Annotated[float, Field(ge=0, le=0.999999)]

#: Largest size of `settings` as JSON, which is part of a Kubernetes object and of a command line.
MAX_SETTINGS_BYTES = 16 * 1024


def _check_size(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(settings))
    except (TypeError, ValueError) as error:
        raise PydanticCustomError("settings_not_json", "it should be JSON: {error}", {"error": str(error)}) from None
    if size > MAX_SETTINGS_BYTES:
        raise PydanticCustomError(
            "settings_too_large", "it should have up to {most} bytes as JSON", {"most": MAX_SETTINGS_BYTES}
        )
    return settings


_Settings = Annotated[dict[str, Any], AfterValidator(_check_size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A recipe's values of the fields that a user may leave out."""

    epochs: int = 10
    global_batch_size: int = 64
    #: For `global_batch_size`; with another one the default is in proportion (Goyal et al. 2017, section 2.1).
    learning_rate: float = 0.1
    warmup_epochs: float = 1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    clip_gradient_norm: float = 0.0
    ema_decay: float = 0.0


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
    settings: _Settings = Field(
        default_factory=dict,
        max_length=64,
        description="Settings of the recipe itself. The recipe checks their names and values; the built-in ones have none.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    epochs: _Epochs | None = Field(
        default=None, description="Passes over the training data. The default is the recipe's."
    )
    global_batch_size: _BatchSize | None = Field(
        default=None,
        description="Samples in one optimizer step over all ranks together, whatever their number. The default"
        " is the recipe's.",
    )
    per_process_batch_size: _Samples = Field(
        default=0,
        description="Samples in one optimizer step of each rank. It replaces globalBatchSize, which becomes this times"
        " the number of ranks. 0 uses globalBatchSize.",
    )
    micro_batch_size: _Samples = Field(
        default=0,
        description="Samples that a rank computes at once. If its share of a step has more, it adds up the gradients of several"
        " parts, and ranks communicate once. 0 computes the whole share at once.",
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
    clip_gradient_norm: _Norm | None = Field(
        default=None,
        description="Largest norm of the gradient of all parameters, which is scaled down to it; 0 does not limit it. The default"
        " is the recipe's.",
    )
    ema_decay: _Decay | None = Field(
        default=None,
        description="Share of the old value in each step's update of an exponential moving average of the weights, which is what"
        " is evaluated and exported; 0 keeps no average. The default is the recipe's.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Source of all randomness: initial weights, order of samples, augmentation, dropout.",
    )
    log_every_steps: int = Field(default=10, ge=1, le=1_000_000, description="Steps between two log lines of rank 0.")
    evaluation_batch_size: _BatchSize = Field(
        default=512,
        description="Held-out samples that a rank evaluates at once. It changes memory use and speed, not the result.",
    )
    evaluate_every_epochs: int = Field(
        default=1,
        ge=0,
        le=100_000,
        description="Number of epochs between two evaluations. 0 evaluates only after the last step, and after evaluateEverySteps.",
    )
    evaluate_every_steps: _Step = Field(
        default=0, description="Number of steps between two further evaluations. 0 makes none."
    )
    # Not "on", which YAML reads as a boolean.
    test_time_augmentation: Literal["last", "always", "never"] = Field(
        default="last",
        description="Which evaluations see each sample in several views, where the recipe defines such views.",
    )
    data_workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Processes of each rank that read samples of a recipe with a map-style data set. 0 reads them in the rank"
        " itself. The default is the number of the rank's CPUs, 8 at most.",
    )
    max_unreadable_images: _Samples = Field(
        default=0,
        description="Images that a rank may skip because they cannot be decoded; its log names each. Training takes the"
        " next image instead, evaluation leaves it out. The job fails if there are more.",
    )
    checkpoint_every_steps: _Step = Field(
        default=0,
        description="Number of steps between two checkpoints, in addition to those at the end of each epoch. 0 saves only those.",
    )
    profile: Literal["fast", "exact"] = Field(
        default="fast",
        description="exact: bit-identical results of identical runs on the same hardware, with deterministic kernels and without"
        " TF32. fast: the fastest kernels.",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Type of numbers in the forward and the backward pass; weights are float32. auto: with the profile fast"
        " bfloat16, or float16 on GPUs without it, and float32 otherwise. With float16 the loss is scaled.",
    )
    initial_checkpoint: str = Field(
        default="",
        max_length=4096,
        description="File or URI (s3://bucket/name) with the initial weights, a checkpoint of this trainer, a safetensors file or the state_dict of a model. It is used as long"
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
    first_step_timeout_seconds: _Seconds = Field(
        default=600,
        description="Longest time without progress until the first step is done. Then the run ends and reports the rank that is late.",
    )
    step_timeout_seconds: _Seconds = Field(
        default=300,
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
    verify_replicas_every_steps: _Step = Field(
        default=0,
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
    clip_gradient_norm: _Norm
    ema_decay: _Decay


def parse_config(values: Mapping[str, Any]) -> TrainerConfig:
    """The configuration that these values of camelCase keys describe.

    Raises:
        ConfigError: one line for each mistake, which names the key, what was found and what is expected.
    """
    return _validated(TrainerConfig, values)


_Model = TypeVar("_Model", bound=BaseModel)


def checked_settings(model: type[_Model], values: Mapping[str, Any]) -> _Model:
    """A recipe's settings as its own model. Keys that the model does not have are refused unless its `extra` is "allow".

    Raises:
        ConfigError: one line for each mistake, which names the key, what was found and what is expected.
    """
    fields, options = model.model_fields, model.model_config
    known = [alias if isinstance(alias := field.validation_alias, str) else name for name, field in fields.items()]
    by_name = options.get("validate_by_name") or options.get("populate_by_name")
    unknown = values.keys() - known - (fields.keys() if by_name else set())
    if unknown and options.get("extra") != "allow":
        raise ConfigError("\n".join(_unknown(f"trainer.settings.{key}", known) for key in sorted(unknown)))
    return _validated(model, values, prefix="trainer.settings.")


def as_recorded(settings: BaseModel) -> dict[str, Any]:
    """A recipe's settings as JSON values: what is logged, recorded and compared."""
    return {name: _as_json(value) for name, value in settings.model_dump(by_alias=True, round_trip=True).items()}


def _as_json(value: object) -> Any:
    if isinstance(value, set | frozenset):  # whose order differs between processes
        return sorted(map(_as_json, value), key=repr)
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_as_json, value))
    return to_jsonable_python(value, bytes_mode="base64", fallback=lambda other: type(other).__name__)


def _validated(model: type[_Model], values: Mapping[str, Any], *, prefix: str = "") -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error, prefix))) from None


def _lines(error: ValidationError, prefix: str) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        key = prefix + ".".join(map(str, item["loc"]))
        expected = item["msg"].replace("Input should", "it should").partition(", unable to parse")[0]
        if item["type"] == "extra_forbidden" and not prefix:
            lines.append(_unknown(key, list(map(to_camel, TrainerConfig.model_fields))))
        elif not item["loc"]:
            lines.append(f"config: {item['msg']}")
        elif item["type"] == "missing":
            lines.append(f"config: {key} is missing" + ("" if prefix else "; set it, for example to digits"))
        else:
            lines.append(f"config: {key} is {_shown(item['input'])}; {expected}")
    return lines


def _unknown(key: str, known: Sequence[str]) -> str:
    similar = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    expected = ", ".join(known) or "none: the recipe has no settings"
    hint = f"did you mean {similar[0]}?" if similar else f"expected one of: {expected}"
    return f"config: unknown key {key}; {hint}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
