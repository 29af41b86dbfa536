"""What schemathesis loads beside the document: real pictures among its made-up strings, and few tokens an answer."""

import json

import schemathesis
from tests.serve.conftest import png, url

from gapless.skills.messages import ROLES

PICTURE = url(png(1, 40, 60))


def plain(messages):
    """Messages as the document has them, all of them texts."""
    if not isinstance(messages, list) or not messages:
        return False
    return all(
        isinstance(one, dict) and one.get("role") in list(ROLES) and isinstance(one.get("content"), str)
        for one in messages
    )


@schemathesis.hook
def map_body(context, body):
    """Part of the bodies become ones that are answered; the others stay as they were made, and so do those
    whose messages or settings are wrong on purpose."""
    if not isinstance(body, dict):
        return body
    draws = len(json.dumps(body, default=str))
    if draws % 6 and plain(body.get("messages")):
        parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
        body["messages"] = [{"role": "user", "content": parts[: 1 + draws % 2]}]
        body.setdefault("max_tokens", 1 + draws % 9)
    if draws % 3 and isinstance(body.get("image_url"), str):
        body["image_url"] = PICTURE
    settings = body.get("settings") or {}
    if "messages" not in body and isinstance(settings, dict) and "max_tokens" not in settings:
        body["settings"] = settings | {"max_tokens": 1 + draws % 9}
    if draws % 5 and isinstance(body.get("model"), str):
        body["model"] = "glint"
    return body
