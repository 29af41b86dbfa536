"""What schemathesis loads beside the document: real pictures among its made-up strings, and few tokens an answer."""

import json

import schemathesis
from tests.serve.conftest import png, url

PICTURE = url(png(1, 40, 60))


@schemathesis.hook
def map_body(context, body):
    """Part of the bodies become ones that are answered; the others stay as they were made."""
    if not isinstance(body, dict):
        return body
    draws = len(json.dumps(body, default=str))
    if draws % 6 and isinstance(body.get("messages"), list):
        parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
        body["messages"] = [{"role": "user", "content": parts[: 1 + draws % 2]}]
        if isinstance(body.get("max_tokens", 1), int):
            body["max_tokens"] = 1 + draws % 9
    if draws % 3 and isinstance(body.get("image_url"), str):
        body["image_url"] = PICTURE
    if draws % 4 and isinstance(body.get("settings", {}), dict):
        body["settings"] = {"max_tokens": 1 + draws % 9}
    if draws % 5 and isinstance(body.get("model"), str):
        body["model"] = "glint"
    return body
