"""The web page: its files, signing in, and the stream of events that keeps it current.

Entry points: `pages.Pages`, `session.Sessions` and `events.Events`. The page itself is in
`frd/web`: static files without a build step, which use nothing but the JSON API.
"""
