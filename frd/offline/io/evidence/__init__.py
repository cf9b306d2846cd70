"""What claims about files are made of: which files a hash means, and what a rank did at a moment.

`hashes` finds the names of files, `moment` when a suspect was last seen by the dumps of its job,
`activity` what each of its threads was doing then, as far as the traces show. None of them judges:
`frd.offline.io.starved` does.
"""
