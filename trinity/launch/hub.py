"""Checks that models and datasets on the hub can be fetched, before anything starts."""

from functools import partial

from trinity.config.error_collector import Gathered
from trinity.config.plan.model import HubName, to_fetch
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError

ANSWER_SECONDS = 15.0


def check_hub(plan: ExperimentPlan, *, must_answer: bool) -> None:
    """Asks the hub for each model and dataset that is neither a directory nor in its cache.

    Raises: UserError with a line for each that is not there. If the hub must answer and does not,
    also one for each model: the buffer may already have stored the rows of a dataset.
    """
    gathered = Gathered()
    for hub_name in to_fetch(plan):
        gathered.of(partial(_check, hub_name, must_answer and hub_name.kind == "model"))
    gathered.raise_all()


def _check(hub_name: HubName, must_answer: bool) -> None:
    try:
        _ask(hub_name)
    except (OSError, ImportError) as error:  # includes HTTP errors
        if must_answer:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(
                f"{hub_name.place} is neither a directory nor in the hub's cache, and the hub "
                f"does not answer ({reason}): fetch it first, or give a directory"
            ) from error


def _ask(hub_name: HubName) -> None:
    # Imported here: needed only if something has to be fetched.
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi()
    info = api.model_info if hub_name.kind == "model" else api.dataset_info
    try:
        info(hub_name.name, timeout=ANSWER_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{hub_name.place} is not here and no public {hub_name.kind} on the hub: correct it, "
            "or set HF_TOKEN for a private one"
        ) from error
    except HTTPError as error:
        raise OSError(str(error)) from error
