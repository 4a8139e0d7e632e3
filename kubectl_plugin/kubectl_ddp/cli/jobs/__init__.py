"""Commands that submit, show or change jobs."""
