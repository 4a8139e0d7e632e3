"""Detection of hangs: reads the state of ranks from their launchers and names the ranks that block the others."""
