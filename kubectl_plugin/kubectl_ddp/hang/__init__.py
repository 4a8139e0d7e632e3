"""Whom do the ranks of a job wait for? What their launchers see now, and the rules that name one."""
