"""The trainer image: a launcher for torchrun scripts, a reference trainer, and metrics of every rank."""
