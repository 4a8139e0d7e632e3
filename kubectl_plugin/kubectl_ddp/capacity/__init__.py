"""What is free in a place, by machine, kind of GPU and queue, and which job fits there now. Pure."""
