"""The base class of all parts of a DDPJob: camelCase in the API, snake_case in Python, frozen, no unknown fields."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

#: A Kubernetes object as JSON.
Body = Mapping[str, Any]


#: How a rule begins that holds for new jobs only. Every rule that an earlier release did not have is one: the API server checks the spec
#: at each write of the status, too, and finds a spec changed whose schema leaves fields open.
IS_STORED = "oldSelf.hasValue() || "


class Rule(NamedTuple):
    """A validation rule that concerns several fields of a part of the resource."""

    expression: str
    """CEL that must be true; the API server evaluates it."""
    message: str
    """What the user reads if it is not."""
    for_new_jobs: bool = False
    """Whether a job that exists may break it: no validation becomes stricter for a stored object."""

    def schema(self) -> dict[str, Any]:
        """The rule as a part of the CRD."""
        if not self.for_new_jobs:
            return {"rule": self.expression, "message": self.message}
        return {"rule": f"{IS_STORED}({self.expression})", "message": self.message, "optionalOldSelf": True}


class Resource(BaseModel):
    """A part of the DDPJob. Field descriptions become the CRD's and the README's."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON schema with the rules, and for an OpenResource with the mark that keeps unknown fields."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.cel_rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in cls.cel_rules]
        if cls.model_config.get("extra") == "allow":
            schema["x-kubernetes-preserve-unknown-fields"] = True
        return schema


class OpenResource(Resource):
    """A part that declares only the fields that rules refer to and keeps all others unchanged."""

    model_config = ConfigDict(extra="allow")


#: A part of the Kubernetes API that is passed on unchanged. The API server validates it when the pod is created.
Opaque = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
