"""Whether models that are still on the hub can be had, before anything starts."""

from collections.abc import Iterator

from trinity.config.model_files import local_model_directory
from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.errors import UserError

ANSWER_SECONDS = 15.0


def check_hub_models(plan: ExperimentPlan) -> None:
    """Ask the hub for each model that is neither a directory nor in its cache.

    Raises: UserError when there is no such model or the hub does not answer.
    """
    for name, key in {name: key for stage in plan.stages for name, key in _models(stage)}.items():
        if local_model_directory(name, key) is None:
            _check_on_hub(name, key)


def _models(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The key that each is named by; the policy's is the last word on its own."""
    for position, model in enumerate(stage.auxiliary_models):
        if model.external is None:
            yield model.model_path, f"explorer.auxiliary_models[{position}].model_path"
    if stage.external_model is None:
        yield stage.model_path, "model.model_path"


def _check_on_hub(name: str, key: str) -> None:
    # Imported here: only a model that has to be fetched needs it.
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=ANSWER_SECONDS)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"`{key}: {name}` is no directory here and no public model on the hub: "
            "correct it, or set HF_TOKEN for a private one"
        ) from error
    except (HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"`{key}: {name}` is neither a directory nor in the hub's cache, and the "
            f"hub does not answer ({reason}): fetch it first, or give a directory"
        ) from error
