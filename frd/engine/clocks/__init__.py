"""Clocks of nodes: the offset of each from the service's clock, as an interval that contains it.

Knows exchanges of timestamps and nothing of ranks or collectives. Entry points:
`estimator.NodeClock` learns from exchanges; `alignment.Alignment` is an immutable conversion of
node time to aligned time; `alignment.UncertainTime` compares two times whose clocks are uncertain.
"""
