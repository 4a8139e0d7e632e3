"""What one must be allowed to do for which command: one table, and what is made of it.

``model`` says what a right is, ``table`` lists what each command does to the API server, ``granting`` makes the Role to
ask for, ``reference`` the page of the documentation. Pure; ``cluster`` asks the API server what is granted.
"""
