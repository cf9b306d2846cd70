"""Files and tables of an analysis: JSON, SQLite, Parquet, timelines and text. Computes no verdict.

Entry points: `export.export`, `timeline.write_timeline`, `tables.tables`.
"""
