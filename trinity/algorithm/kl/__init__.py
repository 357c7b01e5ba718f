"""Estimators of the divergence from a reference policy, per token."""
