"""Process group of the ranks, device selection, and the worker's channel to the agent."""
