"""Why a job does what it does: facts read once, a chain of small named checks over them, findings in order.

``model`` says what a finding is and which cause goes before which, ``facts`` what is known, ``gather`` reads it, and
``chain`` lists the checks; each of the other files holds those of one concern.
"""
