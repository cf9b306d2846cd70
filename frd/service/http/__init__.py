"""The HTTP API: health, JSON, metrics and runbooks as projections of `frd.service.state`.

Entry points: `routes.create_app`, and `web.session.HttpGuard`, which requires a token; the JSON
forms are pure functions in `json_api` and `watching_json`.
"""
