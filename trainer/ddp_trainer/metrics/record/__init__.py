"""What writes metrics in a rank or a launcher, by hand or by hooks into torch."""
