"""From entries to collectives: which entries belong together, and whether they agree.

Entry points: `collectives.Collectives` (live matching), `signature_rules` (what each op permits
to differ), `mismatches` (which ranks disagree), `usual_waits` (stall thresholds), `learned_pauses`
(waits of a job's earlier attempts), `lateness` (which ranks came late, and how often; what
collectives show of clocks). Memory does not grow with the number of entries.
"""
