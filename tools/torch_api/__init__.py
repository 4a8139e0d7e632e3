"""Which names and keywords of torch this project uses, and whether each version of torch has them."""
