"""Every rise of memory in a recording, alarming or not: which rank's memory rose first.

Entry point: `rises.find_rises`.
"""
