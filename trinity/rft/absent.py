"""Workflows and rewards of Trinity-RFT that do not exist here, with what to do instead."""

from collections.abc import Mapping

from trinity.plugins import Absent

_WORKFLOWS = "trinity.workflows"
_ALFWORLD = "it plays in ALFWorld, an environment that no service installs"
_FILES: Mapping[str, str] = {
    "agentscope_react_math_workflow": (
        "envs.agentscope.agentscopev1_react_workflow.AgentScopeReactMathWorkflow"
    ),
    "agentscope_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "agentscope_v1_react_search_workflow": (
        "envs.agentscope.agentscopev1_search_workflow.AgentScopeV1ReactSearchWorkflow"
    ),
    "agentscope_workflow_adapter": "agentscope_workflow.AgentScopeWorkflowAdapter",
    "agentscope_workflow_adapter_v1": "agentscope_workflow.AgentScopeWorkflowAdapterV1",
    "agentscopev0_react_math_workflow": (
        "envs.agentscope.agentscopev0_react_workflow.AgentScopeV0ReactMathWorkflow"
    ),
    "alfworld_workflow": "envs.alfworld.alfworld_workflow.AlfworldWorkflow",
    "as_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "email_search_workflow": "envs.email_searcher.workflow.EmailSearchWorkflow",
    "intercode_sql_workflow": "envs.intercode_sql.intercode_sql_workflow.InterCodeSQLWorkflow",
    "RAFT_alfworld_workflow": "envs.alfworld.RAFT_alfworld_workflow.RAFTAlfworldWorkflow",
    "RAFT_reflect_alfworld_workflow": (
        "envs.alfworld.RAFT_reflect_alfworld_workflow.RAFTReflectAlfworldWorkflow"
    ),
    "sciworld_workflow": "envs.sciworld.sciworld_workflow.SciWorldWorkflow",
    "step_wise_alfworld_workflow": "envs.alfworld.alfworld_workflow.StepWiseAlfworldWorkflow",
    "webshop_workflow": "envs.webshop.webshop_workflow.WebShopWorkflow",
}
"""Files and classes of trinity.common.workflows, which a plugin folder may hold."""
REWARDS: Mapping[str, Absent] = {
    "rm_gallery_reward": Absent(
        "it asks models of the package rm-gallery, which no service installs: name `math_reward` "
        "or another of docs/workflows.md, or write a RewardFn that calls the package"
    )
}


def _plugin_advice(base: str) -> str:
    return f"write it as a plugin, a subclass of {_WORKFLOWS}.{base} (docs/workflows.md)"


_TRANSCRIPT = _plugin_advice("multi_turn.MultiTurnWorkflow")
_STEPS = _plugin_advice("step_wise.StepWiseRewardWorkflow")
_AGENT = (
    _plugin_advice("Workflow")
    + ", in which the agent has the client of `self.model.get_openai_async_client()`"
)
_AGENTSCOPE = f"it runs agents of the package agentscope, which no service installs: {_AGENT}"

_REASONS: Mapping[str, str] = {
    **{name: _AGENTSCOPE for name, file in _FILES.items() if "agentscope" in file},
    "alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "email_search_workflow": f"it searches a database of e-mails with agentscope: {_AGENT}",
    "intercode_sql_workflow": f"it runs SQL in containers of InterCode: {_TRANSCRIPT}",
    "RAFT_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "RAFT_reflect_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "sciworld_workflow": f"it plays in ScienceWorld, which no service installs: {_TRANSCRIPT}",
    "step_wise_alfworld_workflow": f"{_ALFWORLD}: {_STEPS}",
    "webshop_workflow": f"it plays in WebShop, which no service installs: {_TRANSCRIPT}",
}


def _with_file(name: str, reason: str) -> Absent:
    if name not in _FILES:
        return Absent(reason)
    module = _FILES[name].rpartition(".")[0].replace(".", "/")
    why = f"{reason}; or put Trinity-RFT's own file into a plugin folder, as {module}.py"
    return Absent(why, f"trinity.common.workflows.{_FILES[name]}")


WORKFLOWS: Mapping[str, Absent] = {
    name: _with_file(name, reason) for name, reason in _REASONS.items()
}
