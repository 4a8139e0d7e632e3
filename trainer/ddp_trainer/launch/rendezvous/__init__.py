"""Rendezvous: the store that forms worker groups, and its client in the agent."""
