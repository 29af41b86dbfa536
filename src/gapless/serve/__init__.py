"""The HTTP door: one model behind the routes of the Moondream service. Needs the extra `serve`.

In: HTTP. Out: answers of `AsyncVLM`, as JSON or as a stream of events. Nothing below this room knows that it exists.
"""
