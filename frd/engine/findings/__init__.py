"""Findings: how claims of the detectors become findings with ids, labels, texts and a life.

Knows no detector. `claim` is what detectors hand over, `tracker` decides what opens, changes and
closes (`open_finding`: what a claim may change). `builder`
makes a finding from a claim, `attachments` adds evidence that arrives later, `text` words it.
"""
