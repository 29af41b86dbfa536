"""Ray Serve's way to ask which replica a request goes to; `affinity.order` answers.

In: a request whose first argument is a `Call`, and the replicas with the requests that each is known to hold. Out:
replicas, each a rank of its own, so that Ray tries them in this order and passes over those that are full; the first
one is noted in the `Call`, for whoever finds that it keeps silent. This module is pickled by value, by Ray.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from gapless.api.affinity import SLACK, order


class AffinityRouter(RequestRouter):  # type: ignore[misc]
    """See the module."""

    def initialize_state(self, slack: int = SLACK, **_: Any) -> None:
        """Ray's constructor."""
        self._slack = slack
        self._turns = count()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One attempt to find a replica; Ray waits a little between two."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        first = pending_request.args[0] if pending_request is not None and pending_request.args else None
        call = first if hasattr(first, "chosen") else None
        known = self.replica_queue_len_cache
        loads = {replica.replica_id.unique_id: known.get(replica.replica_id) or 0 for replica in candidate_replicas}
        names = order(getattr(call, "key", ""), loads, self._slack, getattr(call, "avoid", ()), next(self._turns))
        if names and call is not None:
            call.chosen.append(names[0])
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[replicas[name]] for name in names]
