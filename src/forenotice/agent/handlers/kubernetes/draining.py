"""Moving the pods off a node: by eviction, as their disruption budgets allow, and by force near the end."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from forenotice.agent.handlers.interface import Outcome
from forenotice.agent.handlers.kubernetes.api import AT_A_TIME, Api, ApiError
from forenotice.agent.handlers.kubernetes.objects import Pod
from forenotice.agent.handlers.kubernetes.patience import Patience

MOST_TOLD = 5
"""Pods that are named."""
LEAST_GRACE = 1
"""Seconds; with none, a pod would be gone for the API server while its containers still run."""


class Drain:
    def __init__(
        self, api: Api, patience: Patience, node: str, *, grace: timedelta | None, escalate: timedelta
    ) -> None:
        self._api = api
        self._patience = patience
        self._node = node
        self._grace = None if grace is None else max(LEAST_GRACE, int(grace.total_seconds()))
        self._escalate = escalate.total_seconds()
        self._escalating = False
        self._first: frozenset[str] | None = None
        """Who was there at the beginning."""
        self._sent: set[str] = set()
        self._refused: dict[str, str] = {}
        self._tries: dict[str, int] = {}
        self._next: dict[str, float] = {}
        """When to try again; all of these by uid."""

    def run(self) -> Outcome:
        while True:
            pods = self._patience.keep_asking(lambda: list(self._api.pods(self._node)))
            going = self._going(pods)
            if not going:
                return Outcome(ok=True, said=f"{self._node} is drained: {len(self._sent)} pods moved, {len(pods)} stay")
            if self._patience.left <= 0:
                return Outcome(ok=False, said=f"{_some(going)} still on {self._node}: {self._told(going)}")
            self._begin_to_escalate()
            self._send_away([pod for pod in going if not pod.terminating and self._due(pod)])
            self._patience.tell(f"{_some(going)} to go")
            self._patience.wait(self._patience.pause)

    def _going(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        moving = [pod for pod in pods if not pod.stays]
        if self._first is None:
            self._first = frozenset(pod.metadata.uid for pod in moving)
        # What comes to a cordoned node in spite of the cordon would come again and again.
        return [pod for pod in moving if pod.metadata.uid in self._first or not pod.tolerates_cordon]

    def _begin_to_escalate(self) -> None:
        if self._escalate and not self._escalating and self._patience.left <= self._escalate:
            self._escalating = True
            self._next.clear()
            self._patience.tell("time is short: what a budget protects is deleted from now on")

    def _due(self, pod: Pod) -> bool:
        return time.monotonic() >= self._next.get(pod.metadata.uid, 0.0)

    def _send_away(self, pods: Sequence[Pod]) -> None:
        # Daemons, so that a request in flight does not keep the process from ending when it is told to.
        for start in range(0, len(pods), AT_A_TIME):
            batch = pods[start : start + AT_A_TIME]
            threads = [threading.Thread(target=self._send_one_away, args=(pod,), daemon=True) for pod in batch]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _send_one_away(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        try:
            self._evict_or_delete(pod)
        except ApiError as error:
            if error.status == 404:
                self._sent.add(uid)
                return
            self._refused[uid] = error.message
            self._tries[uid] = tries = self._tries.get(uid, 0) + 1
            pause = min(self._patience.pause * 2 ** (tries - 1), self._patience.longest)
            self._next[uid] = time.monotonic() + max(pause, error.retry_after)
        else:
            self._sent.add(uid)

    def _evict_or_delete(self, pod: Pod) -> None:
        try:
            self._api.evict(pod, self._grace)
        except ApiError as error:
            if not (self._escalating and error.by_budget):
                raise
            self._api.delete(pod, self._grace_that_fits(pod))

    def _grace_that_fits(self, pod: Pod) -> int:
        usual = pod.spec.termination_grace_period_seconds if self._grace is None else self._grace
        return max(LEAST_GRACE, min(usual, int(self._patience.left)))

    def _told(self, going: Sequence[Pod]) -> str:
        reasons = [
            f"{pod.title} ({'is terminating' if pod.terminating else self._refused.get(pod.metadata.uid, 'is new')})"
            for pod in going[:MOST_TOLD]
        ]
        return ", ".join(reasons) + (", ..." if len(going) > MOST_TOLD else "")


def _some(pods: Sequence[Pod]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"
