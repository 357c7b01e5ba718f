"""Classes that were written for Trinity-RFT, called as functions are called here.

class MyLoss(PolicyLossFn): ...         # a user's class, with `default_args` and `__call__`

part = AdaptedLoss(MyLoss)              # a subclass of AdaptedPart
part(inputs, clip_range=0.1)            # makes the object once, then calls it
"""

import inspect
import json
import keyword
from collections.abc import Mapping
from typing import Any

from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue


class AdaptedPart:
    """Base of such parts: it has the signature that a function in the class's place would have.

    Arguments are those of the constructor and those in `default_args`, whose values come first. An
    argument that only `default_args` names becomes an attribute of the object.
    """

    input_type: str
    return_type: str
    defaults_method = "default_args"
    filled_in: frozenset[str] = frozenset()
    """Parameters of constructors that Trinity-RFT fills in itself."""
    stands_for = ""
    """Name of the built-in function that a class without its own code stands for."""
    needs_reference = False
    """True for a loss that wants the reference model's log-probabilities."""
    wants_rollouts = False
    """True for a loss that needs the rollout policy's log-probabilities besides the old ones."""

    def __init__(self, source: type) -> None:
        if missing := sorted(getattr(source, "__abstractmethods__", ())):
            raise UserError(f"{source.__name__} leaves {', '.join(missing)} abstract: define it")
        self.source = source
        self.__name__ = source.__name__
        self.__doc__ = source.__doc__
        self._parameters = _constructor_parameters(source, self.filled_in)
        self._defaults = _default_args(source, self.defaults_method)
        self.__signature__ = self._signature()
        self._made: dict[str, Any] = {}

    def _signature(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        named = {
            name: parameter.replace(kind=kind)
            for name, parameter in self._parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        for name, value in self._defaults.items():
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UserError(
                    f"`{self.defaults_method}` of {self.source.__name__} names {name!r}, which "
                    "cannot be an argument in Python: rename it"
                )
            known = named.get(name, inspect.Parameter(name, kind))
            named[name] = known.replace(default=value)
        free = max([*named, "value"], key=len) + "_"  # longer than all others, so it is unique
        catch_all = [
            p.replace(name=f"{free}s") for p in self._parameters.values() if p.kind is p.VAR_KEYWORD
        ]
        first = inspect.Parameter(
            free, inspect.Parameter.POSITIONAL_ONLY, annotation=self.input_type
        )
        return inspect.Signature(
            [first, *named.values(), *catch_all], return_annotation=self.return_type
        )

    @property
    def defaults(self) -> Mapping[str, JsonValue]:
        """The values that the class's `default_args` gives."""
        return self._defaults

    def instance(self, arguments: Mapping[str, JsonValue]) -> Any:
        """Returns the object with these arguments, which is made once.

        Raises: UserError when the constructor refuses them.
        """
        key = json.dumps(arguments, sort_keys=True, default=str)
        if key not in self._made:
            self._made[key] = self._make({**self._defaults, **arguments})
        return self._made[key]

    def _make(self, values: Mapping[str, JsonValue]) -> Any:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())
        taken = {k: v for k, v in values.items() if takes_any or k in self._parameters}
        try:
            made = self.source(**taken)
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"{self.source.__name__} refuses its arguments: {error}") from error
        for name, value in values.items():
            if name not in taken and not hasattr(made, name):
                setattr(made, name, value)
        return made


def set_attributes(made: object, values: Mapping[str, Any]) -> None:
    """Sets arguments as attributes, like Trinity-RFT's classes, except attributes of the class."""
    for name, value in values.items():
        if not hasattr(type(made), name):
            setattr(made, name, value)


def overrides(source: type, method: str, base: type) -> bool:
    """Returns True if a class defines the method itself, below its base."""
    return inspect.getattr_static(source, method) is not inspect.getattr_static(base, method)


def refuse_override(source: type, method: str, base: type, advice: str) -> None:
    """Raises UserError if a class defines a method that is never called here."""
    if overrides(source, method, base):
        raise UserError(f"{source.__name__} defines `{method}`, which is not called here: {advice}")


def _constructor_parameters(
    source: type, filled_in: frozenset[str]
) -> dict[str, inspect.Parameter]:
    if inspect.getattr_static(source, "__init__") is object.__init__:
        return {}
    parameters = inspect.signature(inspect.getattr_static(source, "__init__")).parameters
    skipped = inspect.Parameter.VAR_POSITIONAL
    return {
        name: parameter
        for name, parameter in list(parameters.items())[1:]  # without `self`
        if name not in filled_in and parameter.kind is not skipped
    }


def _default_args(source: type, method: str) -> dict[str, JsonValue]:
    """Returns what such a method of the class names; empty for a class without it.

    Raises: UserError when it fails.
    """
    make = getattr(source, method, None)
    if make is None:
        return {}
    try:
        return dict(make() or {})
    except Exception as error:  # a user's method may raise anything
        raise UserError(
            f"`{method}` of {source.__name__} fails: {type(error).__name__}: {error}"
        ) from error
