"""The process in which users' code runs."""
