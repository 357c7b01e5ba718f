"""Estimators of the divergence from a reference policy, token by token."""
