"""The experiment's configuration, and the plan that services act on."""

from trinity.config.advice import advice
from trinity.config.load import load_config
from trinity.config.model_files import local_model_directory
from trinity.config.plan import (
    ExperimentPlan,
    ResolvedAlgorithm,
    ResolvedExperienceBuffer,
    ResolvedTaskset,
    Role,
    Sampling,
    Selector,
    StagePlan,
)
from trinity.config.planning import plan_experiment
from trinity.config.preflight import check_inputs
from trinity.config.root import Config

__all__ = [
    "Config",
    "ExperimentPlan",
    "ResolvedAlgorithm",
    "ResolvedExperienceBuffer",
    "ResolvedTaskset",
    "Role",
    "Sampling",
    "Selector",
    "StagePlan",
    "advice",
    "check_inputs",
    "load_config",
    "local_model_directory",
    "plan_experiment",
]
