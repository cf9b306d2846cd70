"""What the receivers of messages check, as their documents say; the problems of a message.

PagerDuty: "Send an Alert Event" of the Events API v2. Teams: the schema of Adaptive Cards 1.4, in
the envelope of its Workflows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

_PAYLOAD = ("summary", "source", "severity", "timestamp", "component", "group", "class")
_EVENT = ("routing_key", "event_action", "dedup_key", "payload", "links", "client", "client_url")
_STYLES = {
    "weight": ("Lighter", "Default", "Bolder"),
    "size": ("Small", "Default", "Medium", "Large", "ExtraLarge"),
    "fontType": ("Default", "Monospace"),
    "isSubtle": (True, False),
}


def pagerduty(event: dict[str, Any]) -> Iterator[str]:
    if len(event.get("routing_key", "")) != 32:
        yield "Length of 'routing_key' is incorrect (should be 32 characters)"
    if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
        yield "event_action"
    if not 0 < len(event.get("dedup_key", "")) <= 255:
        yield "dedup_key"
    yield from (f"unknown: {key}" for key in set(event) - set(_EVENT))
    if len(json.dumps(event)) > 512_000:
        yield "over 512 KB"
    if event.get("event_action") != "trigger":
        return
    payload = event.get("payload", {})
    yield from (f"unknown: payload.{key}" for key in set(payload) - {*_PAYLOAD, "custom_details"})
    yield from (f"payload.{key}: no text" for key in _PAYLOAD[:3] if not payload.get(key))
    texts = {key: text for key, text in payload.items() if key != "custom_details"}
    yield from (f"payload.{key}: no text" for key, text in texts.items() if type(text) is not str)
    if len(payload.get("summary", "")) > 1024:
        yield "payload.summary"
    if payload.get("severity") not in ("critical", "error", "warning", "info"):
        yield "payload.severity"
    if datetime.fromisoformat(payload["timestamp"]).tzinfo is None:
        yield "payload.timestamp"
    if not isinstance(payload.get("custom_details", {}), dict):
        yield "payload.custom_details"
    for link in event.get("links", []):
        if not set(link) <= {"href", "text"} or not urlsplit(link["href"]).netloc:
            yield f"links: {link}"


def teams(message: dict[str, Any]) -> Iterator[str]:
    if len(json.dumps(message)) > 28_000:
        yield "over 28 KB"
    if set(message) != {"type", "attachments"} or message["type"] != "message":
        yield "not a message"
    for attachment in message["attachments"]:
        kind = attachment["contentType"], attachment["contentUrl"]
        if kind != ("application/vnd.microsoft.card.adaptive", None):
            yield f"attachment: {kind}"
        yield from _card(attachment["content"])


def _card(card: dict[str, Any]) -> Iterator[str]:
    if set(card) != {"$schema", "type", "version", "msteams", "body", "actions"}:
        yield f"card: {sorted(card)}"
    if (card["type"], card["version"]) != ("AdaptiveCard", "1.4"):
        yield "card"
    for action in card["actions"]:
        if set(action) != {"type", "title", "url"} or action["type"] != "Action.OpenUrl":
            yield f"action: {action}"
    for element in card["body"]:
        if set(element) != {"type", "inlines"} or element["type"] != "RichTextBlock":
            yield f"element: {element}"
        for run in element["inlines"]:
            if run["type"] != "TextRun" or not run["text"]:
                yield f"run: {run}"
            styles = {key: style for key, style in run.items() if key not in ("type", "text")}
            yield from (f"{k}: {s}" for k, s in styles.items() if s not in _STYLES.get(k, ()))


def texts(message: dict[str, Any]) -> list[str]:
    """The rows that Teams shows."""
    body = message["attachments"][0]["content"]["body"]
    return ["".join(run["text"] for run in element["inlines"]) for element in body]
