"""Events of files, as columns.

Entry points: `files.EventFile` reads a file or a piece of one. `lines` decodes what
is read, by numpy where lines are regular (see `layout`) and by msgspec elsewhere; `phases` reads
what events say of phases.
"""
