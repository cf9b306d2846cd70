"""Access to the service: tokens, certificates, admission of streams, limits on their rate.

Entry points: `grants.Tokens`, `certificates.Certificates`, `admission.Admission` for agents, and
`refusals.Refusals`, which logs and delays.
"""
