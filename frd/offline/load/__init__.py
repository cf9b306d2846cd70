"""From folders of dump files to one `Trace`: which files, of which rank, of which job.

Entry points: `job_choice.load_dumps` and `folder.load_trace`. Large folders are read by several
processes (`frd.readers`).
"""
