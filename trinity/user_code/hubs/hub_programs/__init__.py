"""The programs of hubs' environments, which hold none of this project's packages.

`program` answers calls; `verifiers_program` and `openenv_program` are the hubs' sides.
"""
