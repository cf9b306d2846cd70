"""From entries to collectives: which entries belong together, and whether they agree.

Entry points: `collectives.Collectives` (live matching), `signature_rules` (what each op permits
to differ), `mismatches` (which ranks disagree), `usual_waits` (stall thresholds), `clock_hints`
(what collectives show of clocks). Collectives that are over go to the consumer that
`Collectives` was given, so matching imports no detector. Memory does not grow with the number of
entries.
"""
