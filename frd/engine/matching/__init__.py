"""From entries to collectives: which entries belong together, and whether they agree.

Entry points: `collectives.Collectives` (live matching), `signature_rules` (what each op permits
to differ), `mismatches` (which ranks disagree). Memory does not grow with the number of entries
seen.
"""
