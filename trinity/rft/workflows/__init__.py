"""Workflows, tasks, models and experiences as Trinity-RFT has them, for files written for it."""
