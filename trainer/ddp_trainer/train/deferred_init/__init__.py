"""Models that are initialized after they are split, so that no rank holds all of one."""
