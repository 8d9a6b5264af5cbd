"""The trainer's configuration: the one model behind config files, `--config-json` and a DDPJob's `spec.trainer`.

Keys are camelCase and flat. Importable without torch. The JSON schema of the model goes into the CRD, so it stays
structural: no `$ref`, no nullable union, no exclusive bound. Defaults that depend on the recipe are factories, which
leaves them out of the schema and out of `model_dump(exclude_unset=True)`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class ConfigError(ValueError):
    """What the user gave (keys, variables or data) is wrong. The text names it; another attempt would fail the same."""


Recipe = Literal["digits", "resnet18-cifar10"]

#: Defaults by recipe. digits: measured over 12 seeds, see README. resnet18-cifar10: the usual reference schedule.
RECIPE_DEFAULTS: Mapping[Recipe, Mapping[str, float]] = {
    "digits": {"epochs": 15, "global_batch_size": 64, "learning_rate": 0.05, "weight_decay": 5e-4, "warmup_epochs": 1},
    "resnet18-cifar10": {
        "epochs": 30,
        "global_batch_size": 512,
        "learning_rate": 0.4,
        "weight_decay": 5e-4,
        "warmup_epochs": 3,
    },
}


def _by_recipe(field: str) -> Callable[[dict[str, Any]], Any]:
    """A default factory: the recipe's own value of the field."""
    return lambda validated: RECIPE_DEFAULTS[validated["recipe"]][field]


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
    learning_rate: float = Field(
        default_factory=_by_recipe("learning_rate"),
        ge=0,
        le=100,
        description=_told("learning_rate", "Peak learning rate, reached at the end of the warm-up."),
    )
    warmup_epochs: float = Field(
        default_factory=_by_recipe("warmup_epochs"),
        ge=0,
        le=100_000,
        description=_told(
            "warmup_epochs", "Epochs of linear rise to the peak learning rate; a cosine to zero follows."
        ),
    )
    weight_decay: float = Field(
        default_factory=_by_recipe("weight_decay"),
        ge=0,
        le=1,
        description=_told("weight_decay", "L2 penalty on weights; biases and normalisation parameters have none."),
    )
    momentum: float = Field(default=0.9, ge=0, le=1, description="Nesterov momentum of SGD; 0 is plain SGD.")
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
        description="Steps between two checkpoints beside the one at each epoch's end; 0 saves at epoch ends only.",
    )
    keep_checkpoints: int = Field(default=3, ge=1, le=1000, description="Newest checkpoints to keep.")
    verify_replicas_every_steps: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Steps between two checks that all ranks hold bit-equal parameters; 0 never checks.",
    )


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
        elif item["type"] == "missing":
            lines.append(f"config: {key} is missing; set it to one of: {', '.join(get_args(Recipe))}")
        else:
            lines.append(
                f"config: {key} is {_shown(item['input'])}; {item['msg'].replace('Input should', 'it should')}"
            )
    return lines


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
