"""What deployments need besides the services: probes, accounts, secrets, manifests, submission."""
