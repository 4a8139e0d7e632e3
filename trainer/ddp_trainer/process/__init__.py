"""Interfaces between the launcher and the processes of a pod: sockets, shared pages, files and GPU probes."""
