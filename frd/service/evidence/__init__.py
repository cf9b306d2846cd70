"""Asks agents for what no recorder has, on behalf of the engine and of people.

No other part of the service sends requests to ranks. Entry points: `asker.Asker` asks the engine's
questions and answers each once; `inquiries.Inquiries` asks on the streams of one cell, and
`inquiries.Dumper` takes dumps, for findings and on demand.
"""
