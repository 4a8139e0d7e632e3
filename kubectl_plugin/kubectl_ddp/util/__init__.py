"""Helpers without knowledge of jobs or Kubernetes."""
