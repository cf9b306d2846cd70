"""`python -m frd` is `frd`."""

from frd.cli import main

main()
