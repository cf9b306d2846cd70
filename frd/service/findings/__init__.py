"""What the service does with findings: evaluate, store, notify, collect evidence, close by hand.

Entry points: `evaluator.Evaluator` (the loop), `responder` and `dumper` (ask agents for evidence),
`notifier` (webhooks).
"""
