"""Processes of one agent: workers, their sockets and logs, sidecars, and the fork server."""
