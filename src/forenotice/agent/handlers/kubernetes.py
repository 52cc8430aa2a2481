"""`kubernetes`: cordon and drain this VM's node of a cluster, and uncordon it afterwards. Runs only in a child process.

The permissions that its user needs in the cluster are in NEEDED. Whether a cordon is ours is recorded on the node, so
it is known even when this VM has lost its journal: in our annotation, and in the API server's record of who changed
which field. The annotation alone would outlast an uncordon by somebody else.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from forenotice.agent.handlers import HandlerError
from forenotice.agent.handlers.kubernetes_api import MANAGER, Api, ApiError, Node, Pod, connect
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.agent.rules.policy import Phase
from forenotice.core import backoff
from forenotice.runtime import Runtime

NEEDED = (("get", "nodes", ""), ("patch", "nodes", ""), ("list", "pods", ""), ("create", "pods", "eviction"))
TO_ESCALATE = ("delete", "pods", "")
MARK = "forenotice/cordoned-by"
"""Annotation of a node that we cordoned: the id of the event for which we did."""
CONCURRENT_EVICTIONS = 8
MOST_NAMED = 5
LEAST_GRACE = 1
"""Seconds; with none, the API server would forget a pod while its containers still run."""
T = TypeVar("T")


class Retrier:
    def __init__(self, until: float, runtime: Runtime, *, pause: float = 1.0, longest: float = 5.0) -> None:
        """`pause` and `longest` are the first and the longest pause between two attempts, in seconds."""
        self.runtime = runtime
        self.pause, self.longest = pause, longest
        self._until = until
        self._printed = ""

    @property
    def left(self) -> float:
        return self._until - self.runtime.monotonic()

    def wait(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, min(seconds, self.left)))

    def retry(self, request: Callable[[], T]) -> T:
        """Until it succeeds, is refused for good, or the time is up."""
        pauses = backoff.pauses(self.pause, self.longest)
        while True:
            try:
                return request()
            except ApiError as error:
                if not error.temporary or self.left <= 0:
                    raise
                self.report(f"asking again: {error}")
                self.wait(max(next(pauses), error.retry_after))

    def report(self, text: str) -> None:
        if text != self._printed:
            print(text, flush=True)
        self._printed = text


def run(config: Kubernetes, facts: Mapping[str, Any], retrier: Retrier) -> str:
    node = config.node or facts["name"].lower()
    with connect(config) as api:
        match Phase(facts["phase"]):
            case Phase.PREPARE:
                event = facts["event"]["EventId"]
                retrier.report(retrier.retry(lambda: cordon(api, node, event)))
                return Drain(api, retrier, node, grace=config.grace_period, escalate=config.escalate).run()
            case Phase.RECOVER | Phase.UNDO:
                return retrier.retry(lambda: uncordon(api, node))
            case Phase.ON_STARTED:
                return ""


def rehearse(config: Kubernetes) -> str:
    with connect(config) as api:
        needed = (*NEEDED, TO_ESCALATE) if config.escalate else NEEDED
        lacking = [f"{verb} {'/'.join(filter(None, what))}" for verb, *what in needed if not api.may(verb, *what)]
        if lacking:
            raise HandlerError(f"it may not: {', '.join(lacking)}; allow its user that by a ClusterRole")
        if not config.node:
            return "would cordon and drain the node that has this VM's name"
        api.node(config.node)
        pods = list(api.pods(config.node))
    staying = sum(pod.stays for pod in pods)
    return f"would cordon {config.node} and move {len(pods) - staying} pods; {staying} would stay"


def cordon(api: Api, name: str, event: str) -> str:
    node = api.node(name)
    if node.cordoned:
        return f"{name} is cordoned already" + ("" if _is_ours(node) else ", by somebody else")
    metadata = {"resourceVersion": node.metadata.resource_version, "annotations": {MARK: event}}
    api.patch_node(name, {"metadata": metadata, "spec": {"unschedulable": True}})
    return f"{name} is cordoned"


def uncordon(api: Api, name: str) -> str:
    try:
        node = api.node(name)
    except ApiError as error:
        if error.status != 404:
            raise
        # A node that registers again is not cordoned.
        return f"there is no node {name} at present: nothing to uncordon"
    if node.metadata.annotation(MARK) is None:
        return f"{name} was not cordoned by us, and is left as it is"
    unmark = {"metadata": {"resourceVersion": node.metadata.resource_version, "annotations": {MARK: None}}}
    if node.cordoned and not _is_ours(node):
        api.patch_node(name, unmark)
        return f"{name} was cordoned again by somebody else, and stays cordoned"
    api.patch_node(name, {**unmark, "spec": {"unschedulable": None}})
    return f"{name} is uncordoned"


def _is_ours(node: Node) -> bool:
    marked = node.metadata.annotation(MARK) is not None
    return marked and (not node.cordoned_by or MANAGER in node.cordoned_by)


class Drain:
    """Moves the pods off a node: by eviction, as their disruption budgets allow, and by deletion near the deadline."""

    def __init__(self, api: Api, retrier: Retrier, node: str, *, grace: timedelta | None, escalate: timedelta) -> None:
        self._api = api
        self._retrier = retrier
        self._node = node
        self._grace = None if grace is None else max(LEAST_GRACE, int(grace.total_seconds()))
        self._escalate = escalate.total_seconds()
        self._escalating = False
        self._first: frozenset[str] | None = None
        self._evicted: set[str] = set()
        self._refused: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._next: dict[str, float] = {}
        """When to try again; all of these by uid."""

    def run(self) -> str:
        retrier = self._retrier
        while True:
            pods = retrier.retry(lambda: list(self._api.pods(self._node)))
            going = self._going(pods)
            if not going:
                return f"{self._node} is drained: {len(self._evicted)} pods moved, {len(pods)} stay"
            count = "1 pod is" if len(going) == 1 else f"{len(going)} pods are"
            if retrier.left <= 0:
                raise HandlerError(f"{count} still on {self._node}: {self._reasons(going)}")
            if self._escalate and not self._escalating and retrier.left <= self._escalate:
                self._escalating = True
                self._next.clear()
                retrier.report("time is short: pods that a budget protects are deleted from now on")
            now = retrier.runtime.monotonic()
            due = [pod for pod in going if not pod.terminating and now >= self._next.get(pod.metadata.uid, 0.0)]
            self._evict_all(due)
            retrier.report(f"{count} to go")
            retrier.wait(retrier.pause)

    def _going(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        moving = [pod for pod in pods if not pod.stays]
        if self._first is None:
            self._first = frozenset(pod.metadata.uid for pod in moving)
        # A pod that tolerates the cordon would be scheduled here again and again.
        return [pod for pod in moving if pod.metadata.uid in self._first or not pod.tolerates_cordon]

    def _evict_all(self, pods: Sequence[Pod]) -> None:
        # In daemon threads, so that a request in flight does not delay the end of the process.
        for begin in range(0, len(pods), CONCURRENT_EVICTIONS):
            batch = pods[begin : begin + CONCURRENT_EVICTIONS]
            threads = [self._retrier.runtime.start_thread(partial(self._evict, pod), "evict") for pod in batch]
            for thread in threads:
                thread.join()

    def _evict(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        try:
            self._evict_or_delete(pod)
        except ApiError as error:
            if error.status != 404:
                self._refused[uid] = error.message
                self._attempts[uid] = attempts = self._attempts.get(uid, 0) + 1
                pause = backoff.pause(attempts, self._retrier.pause, self._retrier.longest)
                self._next[uid] = self._retrier.runtime.monotonic() + max(pause, error.retry_after)
                return
        self._evicted.add(uid)

    def _evict_or_delete(self, pod: Pod) -> None:
        try:
            self._api.evict(pod, self._grace)
        except ApiError as error:
            if not (self._escalating and error.by_budget):
                raise
            usual = pod.spec.termination_grace_period_seconds if self._grace is None else self._grace
            self._api.delete(pod, max(LEAST_GRACE, min(usual, int(self._retrier.left))))

    def _reasons(self, going: Sequence[Pod]) -> str:
        reasons = [
            f"{pod.title} ({'is terminating' if pod.terminating else self._refused.get(pod.metadata.uid, 'is new')})"
            for pod in going[:MOST_NAMED]
        ]
        return ", ".join(reasons) + (", ..." if len(going) > MOST_NAMED else "")
