"""`python -m setwise.cli`."""

from setwise.cli import main

main()
