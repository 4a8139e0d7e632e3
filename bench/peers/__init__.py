"""The same work by other launchers and libraries."""
