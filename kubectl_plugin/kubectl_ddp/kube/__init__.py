"""Kubernetes objects as JSON, and what their fields mean. Pure functions."""
