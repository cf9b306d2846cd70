"""Access to the service: tokens, certificates, admission of streams, limits on their rate.

Entry points: `grants.Tokens`, `certificates.Certificates`, and `admission.Admission` for agents.
"""
