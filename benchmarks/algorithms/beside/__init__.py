"""The same training by others: held-out accuracy over steps and seconds, with TRL and verl."""
