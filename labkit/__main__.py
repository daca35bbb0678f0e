"""`python -m labkit` is the `lab` command."""

from labkit.cli import main

main()
