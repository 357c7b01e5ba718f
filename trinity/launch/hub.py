"""Whether what is still on the hub can be had, before anything starts."""

from functools import partial

from trinity.config.gathered import Gathered
from trinity.config.hub_names import HubName, to_fetch
from trinity.config.plan import ExperimentPlan
from trinity.errors import UserError

ANSWER_SECONDS = 15.0


def check_hub(plan: ExperimentPlan, *, must_answer: bool) -> None:
    """Ask the hub for each model and dataset that is neither a directory nor in its cache.

    Raises: UserError with a line for each that is not there, and, where the hub must answer and
    does not, for each model: the buffer may have stored the rows of a dataset.
    """
    gathered = Gathered()
    for one in to_fetch(plan):
        gathered.of(partial(_check, one, must_answer and one.kind == "model"))
    gathered.raise_all()


def _check(one: HubName, must_answer: bool) -> None:
    try:
        _ask(one)
    except (OSError, ImportError) as error:  # errors of HTTP among them
        if must_answer:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(
                f"{one.place} is neither a directory nor in the hub's cache, and the hub does not "
                f"answer ({reason}): fetch it first, or give a directory"
            ) from error


def _ask(one: HubName) -> None:
    # Imported here: only what has to be fetched needs it.
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    api = HfApi()
    info = api.model_info if one.kind == "model" else api.dataset_info
    try:
        info(one.name, timeout=ANSWER_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{one.place} is not here and no public {one.kind} on the hub: correct it, or set "
            "HF_TOKEN for a private one"
        ) from error
    except HTTPError as error:
        raise OSError(str(error)) from error
