"""The wire contract: messages of `proto/frd/v1` to frozen values and back, checked.

Entry points: `messages` and `clock` (the values), `codec` (values to bytes, and bytes to
values: `Decoder` for an agent's stream, `decode_service` for the service's answers). No I/O. Only
this package and `frd.rpc` import the generated messages.
"""
