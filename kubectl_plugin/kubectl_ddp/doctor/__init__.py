"""Is this machine, is this cluster, fit for our jobs? Facts are read at the edges; what they mean is decided here."""
