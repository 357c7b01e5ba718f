"""The options that name a run: its file or directory here, or an experiment of a deployment."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from trinity.errors import UserError
from trinity.run.contexts import Contexts
from trinity.run.places import Deployment, RunLocation
from trinity.run.runs import ConfigOption, JobDirOption, RunArgument, find_job_dir, place_of

FindRun: TypeAlias = Callable[[], RunLocation]
"""Raises UserError if there is no such run, or if several are meant."""
CommandT = TypeVar("CommandT", bound=Callable[..., None])
BufferOption = Annotated[
    str,
    typer.Option("--buffer", help="The buffer's address, host:port, for a deployment's run."),
]
SynchronizerOption = Annotated[
    str,
    typer.Option(
        "--synchronizer",
        help="The synchronizer's address, host:port. TRINITY_SECURITY_DIR has the certificates and "
        "the token for both.",
    ),
]
ExperimentOption = Annotated[
    str,
    typer.Option(
        "--experiment",
        help="Label or id of the experiment, where several run at these addresses.",
        show_default=False,
    ),
]
ContextOption = Annotated[
    str,
    typer.Option("--context", help="A name for the addresses (`trinity context`)."),
]
_OPTIONS: dict[str, tuple[Any, object]] = {
    "config": (ConfigOption, None),
    "job_dir": (JobDirOption, None),
    "run": (RunArgument, None),
    "buffer": (BufferOption, ""),
    "synchronizer": (SynchronizerOption, ""),
    "experiment": (ExperimentOption, ""),
    "context": (ContextOption, ""),
}


def at_a_run(*, has_words: bool = False) -> Callable[[CommandT], Callable[..., None]]:
    """Gives a command the options that name a run, in place of its parameter `find_run`.

    The command calls that to find the run, after it has checked what else it was given.

    A command whose arguments are words takes no further argument for the run; an option that the
    command has for itself stays its own.
    """

    def decorate(command: CommandT) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = {*signature.parameters, *(("run",) if has_words else ())}
        names = [name for name in _OPTIONS if name not in own]
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "find_run":
                parameters += map(_parameter, names)
            else:
                parameters.append(parameter)

        @wraps(command)
        def called(*args: Any, **given: Any) -> None:
            bound = called.__signature__.bind(*args, **given)  # type: ignore[attr-defined]
            named = {name: bound.arguments.pop(name, _OPTIONS[name][1]) for name in names}
            command(**bound.arguments, find_run=partial(named_place, **named))

        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    annotation, default = _OPTIONS[name]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def named_place(
    config: Path | None = None,
    job_dir: Path | None = None,
    run: Path | None = None,
    buffer: str = "",
    synchronizer: str = "",
    experiment: str = "",
    context: str = "",
) -> RunLocation:
    """Returns the directory or the deployment that options name; else the current context's.

    Raises: UserError if they name two, or half of one.
    """
    here = place_of(run, config, job_dir)
    named = next((path for path in here if path is not None), None)
    if not (buffer or synchronizer or context):
        current = Contexts.load().current if named is None else ""
        if not current:
            if experiment:
                raise UserError("--experiment needs the addresses of a deployment, or --context")
            return find_job_dir(*here)
        context = current
    if named is not None:
        raise UserError(
            f"{named} names a run of this machine, and --buffer, --synchronizer and --context name "
            "services: leave one of them out"
        )
    if context:
        if buffer or synchronizer:
            raise UserError(f"--context {context} has addresses of its own: leave the others out")
        found = Contexts.load().named(context).deployment(experiment)
    else:
        for option, address in (("--buffer", buffer), ("--synchronizer", synchronizer)):
            if not address:
                raise UserError(f"{option} is missing: both services are asked by address")
        found = Deployment(synchronizer=synchronizer, buffer=buffer, experiment=experiment)
    found.check()
    return found
