"""Requests to an API server: connection, credentials, HTTP clients, errors."""
