"""Checks that a workflow's class can be constructed, and that all its methods are called."""

import inspect
from abc import ABCMeta
from collections.abc import Mapping

from trinity.config.plan.parts import ResolvedTaskset
from trinity.errors import UserError
from trinity.rft.workflows.ruler import MathRULERWorkflow
from trinity.rft.workflows.workflow import BaseSimpleWorkflow, reward_of
from trinity.workflows.hosting import takes_auxiliary_models
from trinity.workflows.simple_workflow import SimpleWorkflow as OnLoop
from trinity.workflows.step_wise import (
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.workflows.workflow import Workflow

_STEPS = (StepWiseRewardWorkflow, RewardPropagationWorkflow)
NOT_CALLED: Mapping[type[Workflow], Mapping[str, str]] = {
    OnLoop: {
        "format_messages": "define `messages`",
        "format_prompt": "define `messages`",
    },
}
"""Methods that are never called in a workflow with one of these bases."""
NOT_CALLED_BY_RULER: Mapping[str, str] = {
    "get_ruler_scores": "define `judge_messages`, or `run` with what `get_ruler_scores` does",
    "get_ruler_responses": "define `judge_messages`, or `run` with what it does",
}
"""Methods of Trinity-RFT's workflows of a judge that ours do not call."""
_ELSE = "or import the base from `trinity.common.workflows`, where it is called"
OURS = ("trinity.workflows.", "trinity.rft.")
"""Modules whose classes come with us; a file of a plugin folder is below `trinity.plugins`."""


def check_workflow(part: object, name: str) -> None:
    """Raises UserError if a part is no workflow, fails to construct, or has uncalled methods.

    A class that runs is one whose `run`, or with `is_async` `run_async`, is its own.
    """
    if not isinstance(part, type) or not issubclass(part, Workflow):
        raise UserError(f"{name} is not a subclass of trinity.workflows.Workflow")
    if isinstance(part, ABCMeta) and (abstract := sorted(part.__abstractmethods__)):
        raise UserError(f"{name} leaves {', '.join(abstract)} abstract: define it")
    if _definer(part, "asynchronous") is Workflow:
        _check_run(part, Workflow, name)
    others = {"auxiliary_models": None} if takes_auxiliary_models(part) else {}
    _check_made(part, name, task=None, model=None, **others)
    _check_flags(part, name)
    for base, methods in NOT_CALLED.items():
        if issubclass(part, base):
            _check_is_called(part, name, methods)
    if issubclass(part, _STEPS):
        _check_steps(part, name)
    if issubclass(part, MathRULERWorkflow):
        _check_ruler(part, name)


def notice_of(part: type[Workflow], name: str) -> str:
    """Returns a notice about a class that runs all the same, or an empty text."""
    if part.can_repeat is True or not _is_of_user(_definer(part, "set_repeat_times")):
        return ""
    return (
        f"{name} defines `set_repeat_times`, which is not called: it makes one run at a time, as "
        "in Trinity-RFT; with `can_repeat = True` one call makes all runs of a task"
    )


def require_reward(taskset: ResolvedTaskset, *, needs_one: bool) -> None:
    """Raises UserError if neither the taskset nor its rows name the reward that is needed."""
    if needs_one and taskset.reward is None and not taskset.format.reward_fn_key:
        raise UserError(
            f"{taskset.workflow} has no reward of its own: set `default_reward_fn_type`"
        )


def has_no_reward(part: type) -> bool:
    """True for a workflow that has no reward itself and takes its taskset's."""
    return (
        issubclass(part, BaseSimpleWorkflow)
        and reward_of(part) is None
        and all(_definer(part, own) is BaseSimpleWorkflow for own in ("reset", "_reward"))
    )


def _check_is_called(part: type[Workflow], name: str, methods: Mapping[str, str]) -> None:
    for method, advice in methods.items():
        if _is_of_user(_definer(part, method)):
            raise UserError(f"{name} defines `{method}`, which is never called: {advice}, {_ELSE}")


def _check_flags(part: type[Workflow], name: str) -> None:
    """Checks that a flag and its method come together, where it is read."""
    for flag, method in {"can_repeat": "set_repeat_times", "can_reset": "reset"}.items():
        own, is_set = _definer(part, method), getattr(part, flag) is True
        if is_set and part.is_on_loop() and _is_of_user(_definer(part, flag)):
            raise UserError(
                f"{name} sets `{flag}`, which has no effect with `shares_loop`: leave one of them "
                "out"
            )
        if is_set and own is Workflow:
            raise UserError(f"{name} has `{flag}` but no `{method}`: define it")
        _check_is_plain(part, method, name)
    if _definer(part, "repeatable") is not Workflow and not part.can_repeat:
        raise UserError(f"{name} defines `repeatable`, which is not read: set `can_repeat = True`")


def _check_ruler(part: type[Workflow], name: str) -> None:
    """A method that only a `run` of the user's own could call needs one."""
    if _is_of_user(_definer(part, "run_async" if part.is_async else "run")):
        return
    for method, advice in NOT_CALLED_BY_RULER.items():
        if _is_of_user(_definer(part, method)):
            raise UserError(f"{name} defines `{method}`, which is never called: {advice}")


def _check_steps(part: type[Workflow], name: str) -> None:
    """A step that is awaited must be a coroutine, and one that is called must not be."""
    called, unused = ("_async", "") if part.is_async else ("", "_async")
    for method in ("step", "reward"):
        if not _is_of_user(_definer(part, method + called)):
            told = f"{name} defines no `{method}{called}`, which is what is called"
            if _is_of_user(_definer(part, method + unused)):
                flag = "False" if part.is_async else "True"
                told += f": `{method}{unused}` is with `is_async = {flag}`"
            raise UserError(told)
        if not part.is_async:
            _check_is_plain(part, method, name)
        elif not _is_coroutine(part, method + called):
            raise UserError(f"{name}.{method}{called} is awaited: define it with `async def`")
    if not _is_of_user(_definer(part, "max_step_num")):
        raise UserError(f"{name} defines no `max_step_num`: set it, or define it as a property")


def _check_run(part: type, base: type, name: str) -> None:
    """Checks that the method which is called is the one that was defined last."""
    is_async = inspect.getattr_static(part, "is_async")
    if not isinstance(is_async, bool):  # a property: each instance has its own value
        return
    wanted, other = ("run_async", "run") if is_async else ("run", "run_async")
    if inspect.getattr_static(part, wanted) is inspect.getattr_static(base, wanted):
        why = ", which `is_async` asks for" if is_async else ""
        has_other = _is_of_user(_definer(part, other))
        advice = f": set `is_async = {not is_async}` to have `{other}` called" if has_other else ""
        raise UserError(f"{name} defines no {wanted}{why}{advice}")
    order = part.__mro__
    called, unused = _definer(part, wanted), _definer(part, other)
    if called is not None and unused is not None and order.index(unused) < order.index(called):
        flag = "False" if is_async else "True"
        raise UserError(
            f"{name} defines `{other}`, which is never called, as `{wanted}` of "
            f"{called.__name__} is: define `{wanted}`, or set `is_async = {flag}`"
        )
    if not is_async:
        _check_is_plain(part, "run", name)


def _check_is_plain(part: type, method: str, name: str) -> None:
    if _is_coroutine(part, method):
        raise UserError(f"{name}.{method} is a coroutine, which is never awaited: use plain `def`")


def _is_coroutine(part: type, method: str) -> bool:
    return inspect.iscoroutinefunction(inspect.getattr_static(part, method, None))


def _definer(part: type, name: str) -> type | None:
    """Returns the class that defines what an instance has under this name."""
    return next((base for base in part.__mro__ if name in vars(base)), None)


def _is_of_user(definer: type | None) -> bool:
    """True for a class that does not come with us."""
    return definer is not None and not definer.__module__.startswith(OURS)


def _check_made(part: type, name: str, /, **arguments: object) -> None:
    given = " and ".join(f"{argument}=..." for argument in arguments)
    try:
        inspect.signature(part).bind(**arguments)
    except TypeError as error:
        raise UserError(f"{name} cannot be made with {given}: {error}") from error
    except ValueError:  # the signature of a class written in C is unknown
        return
