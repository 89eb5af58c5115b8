"""Base of the resource models, and the few marks that the CRD generator (:mod:`fdl_api.crd`) understands.

A model says everything once: pydantic checks it in Python, and the same fields, bounds, defaults and
:class:`Rule` lists become the CRD that the API server checks.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

VALIDATIONS: Final = "x-kubernetes-validations"
MUTABLE_KEY: Final = "x-fdl-mutable"
MUTABLE: Final[dict[str, Any]] = {MUTABLE_KEY: True}
"""``json_schema_extra`` of a field that may change after creation; all other spec fields may not."""


def list_map(*keys: str) -> dict[str, Any]:
    """``json_schema_extra`` of a list whose items are told apart by ``keys``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def first_problem(error: ValidationError, *before: str) -> str:
    """The first field that is wrong, and how, e.g. ``spec.elche.anchor: Input should be ...``.

    Args:
        error: of a model.
        before: steps of the path from the object to what was validated.
    """
    first = error.errors()[0]
    return f"{'.'.join(str(step) for step in (*before, *first['loc']))}: {first['msg']}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule in CEL, checked by the API server on the object that carries it.

    Attributes:
        rule: CEL expression that is true for a good object; ``self`` is the object.
        message: sentence that names the field and the way out.
        message_expression: CEL expression that gives a more exact sentence.
        field_path: path of the field to blame, relative to the object, e.g. ``.mode``.
        forbidden: whether the value is well-formed but not allowed (for the machine-readable reason).
    """

    rule: str
    message: str
    message_expression: str | None = None
    field_path: str | None = None
    forbidden: bool = False

    def render(self) -> dict[str, Any]:
        """The rule as an entry of ``x-kubernetes-validations``."""
        entry: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            entry["messageExpression"] = self.message_expression
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        if self.forbidden:
            entry["reason"] = "FieldValueForbidden"
        return entry


def rules(*entries: Rule) -> dict[str, Any]:
    """``json_schema_extra`` of a field with rules of its own; ``self`` is the field's value."""
    return {VALIDATIONS: [entry.render() for entry in entries]}


class Model(BaseModel):
    """Base of all parts of a resource: camelCase outside, unknown keys refused, immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    cel: ClassVar[tuple[Rule, ...]] = ()
    """Rules over the whole object."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        if cls.cel:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [rule.render() for rule in cls.cel]
        return schema

    def to_dict(self) -> dict[str, Any]:
        """The object as the API server takes it: camelCase keys, nothing that is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(Model):
    """Base of the parts of a status. A status written by a newer release is readable: unknown keys are dropped."""

    model_config = ConfigDict(extra="ignore")


class Vendor(StrEnum):
    """Whose devices a cohort computes on."""

    NVIDIA = "nvidia"
    AMD = "amd"
    CPU = "cpu"


DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of a namespaced object such as a claim or a ConfigMap."""

_COMPONENT: Final = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
_HOST: Final = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_DIGEST: Final = "sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}"
IMAGE: Final = (
    f"^(({_HOST}([.]{_HOST})*|[[][0-9A-Fa-f:]+[]])(:[0-9]{{1,5}})?/)?"
    f"{_COMPONENT}(/{_COMPONENT})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@({_DIGEST}))?$"
)
"""Names that a container runtime takes: registry and port, path in small letters, tag, digest."""

Image = Annotated[str, Field(min_length=1, max_length=512)]
"""Name of a container image."""


def image_rule(path: str) -> dict[str, Any]:
    """``json_schema_extra`` of an image's field: a name that no kubelet can pull is refused.

    Args:
        path: of the field, for the sentence.
    """
    return rules(
        Rule(
            f"self.matches('{IMAGE}')",
            f"{path}: is no name of an image, such as registry.example/team/trainer:1; correct it",
        )
    )


LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]

INT_OR_STRING: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True}
Quantity = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1, max_length=32, pattern=QUANTITY)],
    Field(json_schema_extra=INT_OR_STRING),
]
"""A Kubernetes quantity, e.g. ``2``, ``500m``, ``4Gi``."""
