"""Pages of Studio; their content is computed in the plain modules of the parent package."""
