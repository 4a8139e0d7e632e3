"""What ``top`` shows: a job, its ranks and how they got there, as lines that fit a terminal.

Every room but ``screen`` and ``watch`` is pure: numbers in, text out.
"""
