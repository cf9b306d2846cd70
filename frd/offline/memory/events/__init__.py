"""Events of files, as columns.

Entry points: `files.EventFile` reads a file or a piece of one, `pool.read_pieces` many pieces in
several processes. `lines` decodes what is read, by numpy where lines are regular (see
`layout`) and by msgspec elsewhere; `phases` reads what events say of phases.
"""
