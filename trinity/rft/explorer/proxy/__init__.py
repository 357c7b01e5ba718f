"""The client of a served model whose calls are trained."""
