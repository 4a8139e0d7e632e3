"""A job in the user's words: read from flags and files, complete, consistent, and with the origin of every value."""
