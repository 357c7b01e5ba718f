"""Checks that a class can serve as a workflow, as far as its definition tells."""

import inspect
from abc import ABCMeta

from trinity.errors import UserError


def check_workflow(part: object, base: type, name: str) -> None:
    """Raises UserError if a part is not a workflow, or one that cannot be made and run."""
    if not (isinstance(part, type) and issubclass(part, base)):
        raise UserError(f"{name} is not a subclass of trinity.workflows.Workflow")
    if isinstance(part, ABCMeta) and (abstract := sorted(part.__abstractmethods__)):
        raise UserError(f"{name} leaves {', '.join(abstract)} abstract: define it")
    _check_run(part, base, name)
    try:
        inspect.signature(part).bind(task=None, model=None)
    except TypeError as error:
        raise UserError(f"{name} cannot be made with task=... and model=...: {error}") from error
    except ValueError:  # the signature of a class written in C is unknown
        return


def _check_run(part: type, base: type, name: str) -> None:
    is_async = inspect.getattr_static(part, "is_async")
    if not isinstance(is_async, bool):  # a property: each instance has its own value
        return
    wanted = "run_async" if is_async else "run"
    if inspect.getattr_static(part, wanted) is inspect.getattr_static(base, wanted):
        why = ", which `is_async` asks for" if is_async else ""
        raise UserError(f"{name} defines no {wanted}{why}")
