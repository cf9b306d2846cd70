"""Streams to the service: what is sent, in which order, and what waits for acknowledgement.

`stream` does the I/O, `dispatch` decides what to send next, `outbox` keeps rows until
acknowledged, `current_state` the rest. `dictionary` numbers what rows refer to, `stream_indexes`
translates the numbers for one stream.
"""
