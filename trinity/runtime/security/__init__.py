"""Authentication and authorization: certificates, tokens, scopes, and the audit log."""
