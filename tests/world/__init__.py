"""The builders of test worlds.

`observe`: columns of entries, watermarks and P2P ops for an attempt of the engine, by ranges.
"""
