"""PyTorch's pickles of Flight Recorder dumps: read without running code, and written byte for byte.

`unpickle.load_plain` refuses every pickle that holds more than plain values. `layout` and
`lockstep` decode thousands of entries of one layout as columns. `frd.flight.write` writes one.
"""
