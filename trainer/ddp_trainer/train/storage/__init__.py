"""Objects in object stores and directories, by fsspec, for checkpoints and data."""
