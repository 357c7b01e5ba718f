"""Operations of the buffer, one transaction per request."""
