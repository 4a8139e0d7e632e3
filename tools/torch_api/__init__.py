"""Names and keywords of torch that this project uses, compared with each version of torch."""
