"""The verdict on recorded memory samples.

Entry points: `analyze.load_memory` and `analyze.analyze_memory`, which return an
`analysis.MemoryAnalysis`.
"""
