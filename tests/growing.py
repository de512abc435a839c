"""Classes as a later version might have them: each with one more key, and so is every class inside."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, create_model

LATER, DEFAULT = "a_later_key", 7


@cache
def grown(cls: type[BaseModel], every: type[BaseModel] = BaseModel) -> type[Any]:
    """A subclass with the key `LATER`, whose value is `DEFAULT` unless it is given, down to the innermost class."""
    changed: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        annotation = _grown_type(field.annotation, every)
        if annotation is not field.annotation:
            changed[name] = (annotation, ... if field.is_required() else field.get_default(call_default_factory=True))
    if issubclass(cls, every):
        changed[LATER] = (int, DEFAULT)
    return create_model(f"Grown{cls.__name__}", __base__=cls, **changed)


def _grown_type(annotation: Any, every: type[BaseModel]) -> Any:
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        return grown(annotation, every)
    parts = get_args(annotation)
    swapped = tuple(_grown_type(part, every) for part in parts)
    if all(new is old for new, old in zip(swapped, parts, strict=True)):
        return annotation
    origin = get_origin(annotation)
    return reduce(or_, swapped) if origin in (Union, UnionType) else origin[swapped]
