"""Rollouts of one stage: leased assignments become runs of workflows."""
