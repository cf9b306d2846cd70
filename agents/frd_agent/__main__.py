"""`python -m frd_agent` is `frd-agent`."""

from frd_agent.cli import main

main()
