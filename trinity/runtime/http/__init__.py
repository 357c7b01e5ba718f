"""The one HTTP server: uvicorn behind our acceptor, which bounds connections."""
