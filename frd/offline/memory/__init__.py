"""The verdict on recorded memory samples.

Entry points: `analysis.load_memory` and `analysis.analyze_memory`.
"""
