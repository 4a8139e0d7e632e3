"""Checks if this machine and a cluster can run jobs. Facts are read elsewhere and evaluated here."""
