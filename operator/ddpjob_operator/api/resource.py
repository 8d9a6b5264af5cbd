"""The base of everything that stands in a DDPJob: camelCase outside, snake_case inside, frozen, nothing unknown."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Resource(BaseModel):
    """A part of the DDPJob. Field descriptions become the CRD's and the README's."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )


class OpenResource(Resource):
    """A part that declares only what rules need and hands everything else on as it is."""

    model_config = ConfigDict(extra="allow")


#: A piece of the Kubernetes API that is handed on as it is; the API server checks it when the pod is created.
Opaque = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
