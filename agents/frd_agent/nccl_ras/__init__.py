"""Asks the RAS service of a rank's NCCL what it knows of the rank's communicators.

Every process that uses NCCL 2.24 or later has a thread for it; one of a node listens, at
``localhost:28028`` by default, and answers for the whole job. Only status is asked for, only when
the service of frd wants a second opinion on a finding, and only on this machine: the address comes
from the environment of a rank.

Entry point: `client.RasClient`.
"""
