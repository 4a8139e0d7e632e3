"""Messages between agents and the store, and names that all of the launcher shares."""
