"""What the service does with findings: evaluate, store, notify, close by hand.

Entry points: `evaluator.Evaluator` (the loop), `notifier` (webhooks).
"""
