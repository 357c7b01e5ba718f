"""Who may call what: certificates, tokens, scopes, and what is written down of refusals."""
