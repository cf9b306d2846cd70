"""The commands of `frd`, one module each, imported when the command runs.

Each module has a click command named `command`. Commands parse options, ask the service or
`frd.offline`, and hand the result to `frd.cli.screens`; they compute nothing.
"""
