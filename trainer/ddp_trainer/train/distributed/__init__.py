"""Process group of the ranks, devices, and the socket to the launcher."""
