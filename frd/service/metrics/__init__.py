"""The service's Prometheus metrics, computed from `frd.service.state` at each scrape.

`table` lists every metric with its labels and help; rules, dashboards and docs are tested against
it. `collector` fills them in.
"""
