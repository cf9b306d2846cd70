"""The release, in a module that imports nothing else of frd."""

__version__ = "0.1.0"
