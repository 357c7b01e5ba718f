"""Deployment tools besides the services: probes, accounts, secrets, manifests, submission."""
