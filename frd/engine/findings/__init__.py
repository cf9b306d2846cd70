"""Findings: how claims of the detectors become findings with ids, labels, texts and a life.

Knows no detector. Entry points: `builder` (finding from claim), `text` (sentences for people),
`severity` (warning or critical).
"""
