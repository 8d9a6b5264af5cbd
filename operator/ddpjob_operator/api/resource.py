"""The base of everything that stands in a DDPJob: camelCase outside, snake_case inside, frozen, nothing unknown."""

from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema


class Rule(NamedTuple):
    """A condition on a part of the resource that joins several fields."""

    expression: str
    """CEL that must be true; the API server evaluates it."""
    message: str
    """What the user reads when it is not."""


class Resource(BaseModel):
    """A part of the DDPJob. Field descriptions become the CRD's and the README's."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON schema with the rules, and with the mark of parts that hand on what they do not declare."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.cel_rules:
            schema["x-kubernetes-validations"] = [{"rule": r.expression, "message": r.message} for r in cls.cel_rules]
        if cls.model_config.get("extra") == "allow":
            schema["x-kubernetes-preserve-unknown-fields"] = True
        return schema


class OpenResource(Resource):
    """A part that declares only what rules need and hands everything else on as it is."""

    model_config = ConfigDict(extra="allow")


#: A piece of the Kubernetes API that is handed on as it is; the API server checks it when the pod is created.
Opaque = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
