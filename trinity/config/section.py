"""What all sections share: frozen, closed to unknown keys, explained in place."""

from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

Args = dict[str, JsonValue]
"""Arguments handed through, unread, to a function that the user chose by name."""

PathSegment = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that becomes part of a path: letters, digits, `.`, `_`, `-`, first a letter or digit."""

OptionalSegment = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")]

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A part of the configuration as the user wrote it; what follows from it stands in `plan.py`.

    Fields are not required here, also where no default works (a model's path): a stage may give any
    part of a section, so only the merged stage can tell what is missing.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _a_switch_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `on` and `yes` as true, which pydantic would take for the number 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and _has_number(field.annotation):
            raise ValueError("must be a number")
        return value


def _has_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(_has_number(arg) for arg in get_args(annotation))
