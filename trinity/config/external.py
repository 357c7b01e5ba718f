"""Models served elsewhere: how they are reached, and the modes that cannot use them."""

from trinity.config.model_services import ExternalAccessConfig
from trinity.config.plan_parts import ExternalAccess
from trinity.config.root import Config
from trinity.errors import UserError


def is_external(config: Config) -> bool:
    """True if a model served elsewhere takes the place of the policy."""
    rollout = config.explorer.rollout_model
    return config.model.external_model.enable or rollout.engine_type == "external"


def resolve_external_model(config: Config, stage: str) -> ExternalAccess | None:
    """Returns the access to the external model, if there is one.

    Raises: UserError when it is to be trained, or has no name.
    """
    if not is_external(config):
        return None
    if config.mode not in ("bench", "explore"):
        raise UserError(
            f"stage `{stage}`: a model that others serve (`model.external_model.enable`) tells no "
            f"log-probabilities that `mode: {config.mode}` could train on: give `mode: bench` or "
            "`explore`, or make it one of `explorer.auxiliary_models`"
        )
    if config.mode == "bench" and not config.buffer.explorer_input.eval_tasksets:
        raise UserError(
            f"stage `{stage}`: `buffer.explorer_input.eval_tasksets` is missing: "
            "`mode: bench` evaluates the model on them"
        )
    return external_access(config.model.external_model, "model.external_model", stage)


def external_access(given: ExternalAccessConfig, key: str, stage: str) -> ExternalAccess:
    """Returns the access to a model; raises UserError if the model has no name."""
    if not given.model_name:
        raise UserError(
            f"stage `{stage}`: `{key}.model_name` is missing: "
            "give the name that the model has where others serve it"
        )
    return ExternalAccess(
        base_url_env=given.base_url_env,
        api_key_env=given.api_key_env,
        model_name=given.model_name,
    )
