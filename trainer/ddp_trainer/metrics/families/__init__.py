"""Catalogue of the exported metrics as data: names, types, labels and help texts."""
