"""Streams to the service: what is sent, in which order, and what waits for acknowledgement.

`uplinks` opens a stream for each job. `stream` does the I/O, `route` decides where and when it
connects, `dispatch` what to send next. `outbox` keeps rows until acknowledged, `current_state` the
rest; ranks reach both by `reports`. `dictionary` numbers what rows refer to, and
translates the numbers for one stream.
"""
