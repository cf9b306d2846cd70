"""Verdicts that must not change, kept as data.

`sources` computes the verdicts of each source, `verdicts` reduces a finding to what matters, and
`*.jsonl` holds what they were. `python -m tests.frozen` compares all; with `--write` it replaces
the data.
"""
