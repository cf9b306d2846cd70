"""What claims about files are made of: what a rank did at a moment.

`activity` says what each of its threads was doing then, as far as the traces show. It does not
judge: `frd.offline.io.starved` does.
"""
