"""Commands about plans, clusters, defaults and this program."""
