"""Moving the pods off a node: by eviction, as their disruption budgets allow, and by force near the end."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from forenotice.agent.handlers import Outcome
from forenotice.agent.handlers.kubernetes_api import (
    AT_A_TIME,
    MANAGER,
    Api,
    ApiError,
    CredentialsError,
    Node,
    Pod,
    connect,
)
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.agent.rules.policy import Phase
from forenotice.core import backoff

MOST_TOLD = 5
"""Pods that are named."""
LEAST_GRACE = 1
"""Seconds; with none, a pod would be gone for the API server while its containers still run."""


T = TypeVar("T")


class Retrier:
    def __init__(self, until: float, *, pause: float = 1.0, longest: float = 5.0) -> None:
        self._until = until
        self.pause = pause
        """Seconds before asking again."""
        self.longest = longest
        """And when that did not help for a while."""
        self._waiting = threading.Event()
        self._said = ""

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    def wait(self, seconds: float) -> None:
        self._waiting.wait(max(0.0, min(seconds, self.left)))

    def keep_asking(self, question: Callable[[], T]) -> T:
        """Until it is answered, refused for good, or the time is up."""
        pause = self.pause
        while True:
            try:
                return question()
            except ApiError as error:
                if not error.passes or self.left <= 0:
                    raise
                self.tell(f"asking again: {error}")
                self.wait(max(pause, error.retry_after))
                pause = min(2 * pause, self.longest)

    def tell(self, text: str) -> None:
        """Progress, unless it was told already."""
        if text != self._said:
            print(text, flush=True)
        self._said = text


class Drain:
    def __init__(self, api: Api, retrier: Retrier, node: str, *, grace: timedelta | None, escalate: timedelta) -> None:
        self._api = api
        self._retrier = retrier
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
            pods = self._retrier.keep_asking(lambda: list(self._api.pods(self._node)))
            going = self._going(pods)
            if not going:
                return Outcome(ok=True, said=f"{self._node} is drained: {len(self._sent)} pods moved, {len(pods)} stay")
            if self._retrier.left <= 0:
                return Outcome(ok=False, said=f"{_some(going)} still on {self._node}: {self._told(going)}")
            self._begin_to_escalate()
            self._send_away([pod for pod in going if not pod.terminating and self._due(pod)])
            self._retrier.tell(f"{_some(going)} to go")
            self._retrier.wait(self._retrier.pause)

    def _going(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        moving = [pod for pod in pods if not pod.stays]
        if self._first is None:
            self._first = frozenset(pod.metadata.uid for pod in moving)
        # What comes to a cordoned node in spite of the cordon would come again and again.
        return [pod for pod in moving if pod.metadata.uid in self._first or not pod.tolerates_cordon]

    def _begin_to_escalate(self) -> None:
        if self._escalate and not self._escalating and self._retrier.left <= self._escalate:
            self._escalating = True
            self._next.clear()
            self._retrier.tell("time is short: what a budget protects is deleted from now on")

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
            pause = backoff.pause(tries, self._retrier.pause, self._retrier.longest)
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
        return max(LEAST_GRACE, min(usual, int(self._retrier.left)))

    def _told(self, going: Sequence[Pod]) -> str:
        reasons = [
            f"{pod.title} ({'is terminating' if pod.terminating else self._refused.get(pod.metadata.uid, 'is new')})"
            for pod in going[:MOST_TOLD]
        ]
        return ", ".join(reasons) + (", ..." if len(going) > MOST_TOLD else "")


def _some(pods: Sequence[Pod]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"


NEEDED = (("get", "nodes", ""), ("patch", "nodes", ""), ("list", "pods", ""), ("create", "pods", "eviction"))
TO_ESCALATE = ("delete", "pods", "")


def run(config: Kubernetes, facts: Mapping[str, Any], until: float) -> Outcome:
    return carry_out(config, facts, Retrier(until))


def carry_out(config: Kubernetes, facts: Mapping[str, Any], retrier: Retrier) -> Outcome:
    node = config.node or facts["name"].lower()
    try:
        with connect(config) as api:
            match Phase(facts["phase"]):
                case Phase.PREPARE:
                    retrier.tell(cordon(api, retrier, node, facts["event"]["EventId"]))
                    return Drain(api, retrier, node, grace=config.grace_period, escalate=config.escalate).run()
                case Phase.RECOVER | Phase.UNDO:
                    return Outcome(ok=True, said=uncordon(api, retrier, node))
                case Phase.ON_STARTED:
                    return Outcome(ok=True)
    except (ApiError, CredentialsError) as error:
        return Outcome(ok=False, said=error.message)


def rehearse(config: Kubernetes) -> Outcome:
    try:
        with connect(config) as api:
            return _rehearsed(config, api)
    except (ApiError, CredentialsError) as error:
        return Outcome(ok=False, said=error.message)


def _rehearsed(config: Kubernetes, api: Api) -> Outcome:
    needed = (*NEEDED, TO_ESCALATE) if config.escalate else NEEDED
    lacking = [" ".join((verb, "/".join(filter(None, what)))) for verb, *what in needed if not api.may(verb, *what)]
    if lacking:
        return Outcome(ok=False, said=f"it may not: {', '.join(lacking)}; allow its user that by a ClusterRole")
    if not config.node:
        return Outcome(ok=True, said="would cordon and drain the node that has this VM's name")
    api.node(config.node)
    pods = list(api.pods(config.node))
    staying = sum(pod.stays for pod in pods)
    return Outcome(
        ok=True, said=f"would cordon {config.node} and move {len(pods) - staying} pods; {staying} would stay"
    )


MARK = "forenotice/cordoned-by"
"""Annotation of a node that we cordoned: the id of the event for which we did."""


def cordon(api: Api, retrier: Retrier, name: str, event: str) -> str:
    def once() -> str:
        node = api.node(name)
        if node.spec.unschedulable:
            return f"{name} is cordoned already" + ("" if _is_ours(node) else ", by somebody else")
        version = node.metadata.resource_version
        patch = {
            "metadata": {"resourceVersion": version, "annotations": {MARK: event}},
            "spec": {"unschedulable": True},
        }
        api.patch_node(name, patch)
        return f"{name} is cordoned"

    return retrier.keep_asking(once)


def uncordon(api: Api, retrier: Retrier, name: str) -> str:
    def once() -> str:
        try:
            node = api.node(name)
        except ApiError as error:
            if error.status != 404:
                raise
            # A node that registers again is not cordoned.
            return f"there is no node {name} at present: nothing to uncordon"
        if node.metadata.annotation(MARK) is None:
            return f"{name} was not cordoned by us, and is left as it is"
        version = node.metadata.resource_version
        unmark = {"metadata": {"resourceVersion": version, "annotations": {MARK: None}}}
        if node.spec.unschedulable and not _is_ours(node):
            api.patch_node(name, unmark)
            return f"{name} was cordoned anew by somebody else, and stays so"
        api.patch_node(name, {**unmark, "spec": {"unschedulable": None}})
        return f"{name} is uncordoned"

    return retrier.keep_asking(once)


def _is_ours(node: Node) -> bool:
    marked = node.metadata.annotation(MARK) is not None
    return marked and (not node.cordoned_by or MANAGER in node.cordoned_by)
