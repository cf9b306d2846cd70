"""Who may talk to the service: tokens, certificates, admission of streams, limits on their rate.

Entry points: `grants.Tokens`, `certificates.Certificates`, `admission.Door` for agents and
`http_guard.Guard` for HTTP.
"""
