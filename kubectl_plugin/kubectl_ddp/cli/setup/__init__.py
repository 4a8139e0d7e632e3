"""Commands about job files, clusters, defaults and this program."""
