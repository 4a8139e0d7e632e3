"""The store that forms worker groups, and its client."""
