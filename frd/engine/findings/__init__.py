"""Findings: how claims of the detectors become findings with ids, labels, texts and a life.

Knows no detector. `builder` has the claims that detectors hand over, and makes findings of them;
`tracker` decides what opens, changes and closes (`open_finding`: what a claim may change),
`attachments` adds evidence that arrives later, `text` words it.
"""
