"""Decides whether code that comes with a model, an agent's command or a hub may run here.

The explorer and the trainer hold the credentials of their tenant, and a model's code could read
them. So the operator decides, by a variable in the environment of the process. Without credentials
there are no secrets to protect, and a person who starts a run on loopback could import the code
anyway.
"""

import logging
import os
from collections.abc import Mapping

from trinity.config.plan.model_code import model_code
from trinity.errors import UserError
from trinity.runtime.security.credentials import operator_allows

logger = logging.getLogger(__name__)

VARIABLE = "TRINITY_TRUST_REMOTE_CODE"
AGENTS_VARIABLE = "TRINITY_AGENT_COMMANDS"


def trusts_model_code(
    wanted: bool, model: str, environment: Mapping[str, str] = os.environ
) -> bool:
    """Returns True if code of this model runs, which is logged with the files' names.

    Raises: UserError if the user wants it and the operator has not allowed it.
    """
    if not wanted:
        return False
    code = model_code(model)
    if not operator_allows(VARIABLE, environment):
        raise UserError(
            f"`trust_remote_code: true` would run {code or 'the code'} of the model {model} in a "
            f"process that holds credentials: its operator may allow that with {VARIABLE}=true in "
            "the environment of explorer and trainer"
        )
    logger.warning("code that comes with the model runs here", extra={"model": model, "code": code})
    return True


def agent_commands_are_allowed(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns True if commands of agents may have the rights of this process."""
    return operator_allows(AGENTS_VARIABLE, environment)


def check_agent_commands(environment: Mapping[str, str] = os.environ) -> None:
    """Raises: UserError if the operator has not allowed the commands of agents."""
    if not agent_commands_are_allowed(environment):
        raise UserError(
            "the workflow `agent` would start a command in an explorer that holds credentials: "
            "give it `sandbox: true`, or have the explorer's operator allow it with "
            f"{AGENTS_VARIABLE}=true in its environment"
        )


def check_hub_code(hub: str, service: str = "explorer") -> None:
    """Raises: UserError if the operator has not allowed code of hubs, as that of agents."""
    if not agent_commands_are_allowed():
        raise UserError(
            f"the workflow `{hub}` would start the code of an environment in the {service}, which "
            f"holds credentials: its operator may allow that with {AGENTS_VARIABLE}=true in its "
            "environment"
        )
