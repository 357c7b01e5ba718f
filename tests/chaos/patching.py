"""Replaces functions of the services, in tests alone, by the name of where they are used."""

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Function = Callable[..., Any]


def patch(target: str, wrap: Callable[[Function], Function]) -> None:
    """Replace `package.module:attribute`, or `package.module:Class.method`, by its wrapped self.

    Raises: AttributeError, ImportError when there is no such function: a name has changed.
    """
    holder, name = _find(target)
    original = inspect.getattr_static(holder, name)
    if not inspect.isfunction(original):
        raise AttributeError(f"{target} is not a plain function")
    setattr(holder, name, wrap(original))


def around(
    original: Function,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> Function:
    """The function with something done before its call, or after its end with its result."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = original(*args, **kwargs)
        if after is None:
            return result
        if inspect.isawaitable(result):
            return _then(result, after)
        after(result)
        return result

    return wrapped


async def _then(awaited: Awaitable[Any], after: Callable[[Any], None]) -> Any:
    result = await awaited
    after(result)
    return result


def _find(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    holder: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    return holder, name
