"""The command line: wiring, one file per command. Decisions are made elsewhere, in code that knows no flags."""
