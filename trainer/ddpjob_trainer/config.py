"""The trainer's configuration: the one model behind config files, `--config-json` and a DDPJob's `spec.trainer`.

Keys are camelCase and flat. Importable without torch. The JSON schema of the model goes into the CRD, so it stays
structural: no `$ref`, no nullable union, no exclusive bound. Defaults that depend on the recipe are factories, which
leaves them out of the schema and out of `model_dump(exclude_unset=True)`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.limits import Limits

Recipe = Literal[
    "digits", "resnet18-cifar10", "resnet50-cifar10", "speedrun-cifar10", "resnet50-224", "resnet50-224-synthetic"
]
_FIELDS = ("epochs", "global_batch_size", "learning_rate", "warmup_epochs", "weight_decay", "momentum")

#: Defaults by recipe. digits: measured over 12 seeds, see README. The CIFAR ResNets: the usual 0.1 for 128 samples.
#: speedrun: published settings of airbench94_muon, see ddpjob_recipes.speedrun.
#: resnet50-224: Goyal et al. 2017 (arXiv 1706.02677), section 5.1.
RECIPE_DEFAULTS: Mapping[Recipe, Mapping[str, float]] = {
    "digits": dict(zip(_FIELDS, (15, 64, 0.05, 1, 5e-4, 0.9), strict=True)),
    "resnet18-cifar10": dict(zip(_FIELDS, (30, 512, 0.4, 3, 5e-4, 0.9), strict=True)),
    "resnet50-cifar10": dict(zip(_FIELDS, (30, 512, 0.4, 3, 5e-4, 0.9), strict=True)),
    "speedrun-cifar10": dict(zip(_FIELDS, (8, 2000, 0.24, 0, 4e-3, 0.6), strict=True)),
    "resnet50-224": dict(zip(_FIELDS, (90, 256, 0.1, 5, 1e-4, 0.9), strict=True)),
    "resnet50-224-synthetic": dict(zip(_FIELDS, (10, 256, 0.1, 0, 1e-4, 0.9), strict=True)),
}


def _by_recipe(field: str) -> Callable[[dict[str, Any]], Any]:
    """A default factory: the recipe's own value of the field."""
    return lambda validated: RECIPE_DEFAULTS[validated["recipe"]][field]


def _linear_learning_rate(validated: dict[str, Any]) -> float:
    """The recipe's learning rate, as much larger as the batch is (Goyal et al. 2017, section 2.1)."""
    defaults = RECIPE_DEFAULTS[validated["recipe"]]
    return float(defaults["learning_rate"] * validated["global_batch_size"] / defaults["global_batch_size"])


def _told(field: str, description: str) -> str:
    """The description with the defaults of every recipe, since the schema cannot carry them."""
    defaults = ", ".join(f"{defaults[field]:g} for {recipe}" for recipe, defaults in RECIPE_DEFAULTS.items())
    return f"{description} Default: {defaults}."


class TrainerConfig(BaseModel):
    """What to train and how. Immutable; unknown keys are refused; every value is bounded."""

    model_config = ConfigDict(
        alias_generator=to_camel, allow_inf_nan=False, extra="forbid", frozen=True, validate_default=True
    )

    recipe: Recipe = Field(description="Model, data set and augmentation.")
    epochs: int = Field(
        default_factory=_by_recipe("epochs"),
        ge=1,
        le=100_000,
        description=_told("epochs", "Passes over the training data."),
    )
    global_batch_size: int = Field(
        default_factory=_by_recipe("global_batch_size"),
        ge=1,
        le=1_000_000,
        description=_told(
            "global_batch_size", "Samples in one optimizer step over all ranks together, whatever their number."
        ),
    )
    per_process_batch_size: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Samples in one optimizer step of each rank, in place of globalBatchSize, which becomes this times"
        " the number of ranks; 0: globalBatchSize holds.",
    )
    learning_rate: float = Field(
        default_factory=_linear_learning_rate,
        ge=0,
        le=100,
        description=_told(
            "learning_rate",
            "Peak learning rate, reached at the end of the warm-up. Where it is not set it grows with the global batch"
            " size, in proportion to the recipe's own.",
        ),
    )
    warmup_epochs: float = Field(
        default_factory=_by_recipe("warmup_epochs"),
        ge=0,
        le=100_000,
        description=_told(
            "warmup_epochs",
            "Epochs of linear rise to the peak learning rate; a cosine to zero follows (speedrun: a line).",
        ),
    )
    weight_decay: float = Field(
        default_factory=_by_recipe("weight_decay"),
        ge=0,
        le=1,
        description=_told(
            "weight_decay",
            "L2 penalty on weights; biases and normalisation parameters have none (speedrun: on biases and head alone).",
        ),
    )
    momentum: float = Field(
        default_factory=_by_recipe("momentum"),
        ge=0,
        le=1,
        description=_told("momentum", "Nesterov momentum of SGD; 0 is plain SGD (speedrun: of Muon)."),
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Source of all randomness: weights, order of samples, augmentation.",
    )
    log_every_steps: int = Field(default=10, ge=1, le=1_000_000, description="Steps between two log lines of rank 0.")
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
        description="File with the initial weights, a checkpoint of this trainer or the state_dict of a model. It is used as long"
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
    def _one_batch_size(self) -> Self:
        if self.per_process_batch_size and "global_batch_size" in self.model_fields_set:
            raise PydanticCustomError(
                "two_batch_sizes", "both globalBatchSize and perProcessBatchSize are set; set one of them"
            )
        return self

    @property
    def limits(self) -> Limits:
        """How long ranks may stand still."""
        return Limits(first_step_seconds=self.first_step_timeout_seconds, step_seconds=self.step_timeout_seconds)

    def for_world_size(self, world_size: int) -> "TrainerConfig":
        """The same with the global batch size, and the learning rate that follows it, of that many ranks.

        Raises:
            ConfigError: one of them is out of its bounds.
        """
        if not self.per_process_batch_size:
            return self
        values = self.model_dump(by_alias=True, exclude_unset=True, exclude={"per_process_batch_size"})
        try:
            made = parse_config({**values, "globalBatchSize": self.per_process_batch_size * world_size})
        except ConfigError as error:
            where = f"with perProcessBatchSize {self.per_process_batch_size} on {world_size} ranks"
            raise ConfigError(f"{error} ({where})") from None
        return made.model_copy(update={"per_process_batch_size": self.per_process_batch_size})


def parse_config(values: object) -> TrainerConfig:
    """The configuration that `values`, a mapping with camelCase keys, describes.

    Raises:
        ConfigError: one line for each mistake, which names the key, what was found and what is expected.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"config: found {_shown(values)}; expected a mapping of keys such as recipe and epochs")
    try:
        return TrainerConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error))) from None


def _lines(error: ValidationError) -> list[str]:
    keys = ", ".join(to_camel(field) for field in TrainerConfig.model_fields)
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "default_factory_not_called":  # an echo of the recipe's own error
            continue
        if item["type"] == "extra_forbidden":
            lines.append(f"config: unknown key {key}; expected one of: {keys}")
        elif not key:
            lines.append(f"config: {item['msg']}")
        elif item["type"] == "missing":
            lines.append(f"config: {key} is missing; set it to one of: {', '.join(get_args(Recipe))}")
        else:
            lines.append(
                f"config: {to_camel(key)} is {_shown(item['input'])}; {item['msg'].replace('Input should', 'it should')}"
            )
    return lines


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
