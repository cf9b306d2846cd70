"""HTTP in a cluster: any replica answers, also for the jobs of the others.

Entry points: `peers.Peers`, which wraps the handlers of `frd.service.http.routes`, and
`client.PeerClient`, which speaks to the other replicas. This folder is imported only with a
cluster, because the client needs httpx. `merging` makes one answer of several and knows no HTTP.

A request is checked by `HttpGuard` of the replica that receives it, before it is forwarded, and
again, with the client's own token, by the one that answers it. A forwarded request has the header
``frd-forwarded``; it is answered from what the receiving replica has itself, so there are no loops.
"""
