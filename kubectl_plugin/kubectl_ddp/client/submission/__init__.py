"""Submission of a job: from its values to a job that can be rendered, its checks, and the creation of its objects."""
