"""From folders of dump files to one `Trace`: which files, of which rank, of which job.

Entry points: `folder.load_dumps` and `folder.load_trace`. Large folders are read by several
processes (`frd.readers`).
"""
