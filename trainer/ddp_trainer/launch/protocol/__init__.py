"""Protocol between agents and the store, with the constants, errors and console output that the launcher shares."""
