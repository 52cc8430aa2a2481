"""Cordon and drain this VM's node of a Kubernetes cluster, and uncordon it afterwards.

Runs only in a child process. What its user must be allowed to do in the cluster stands in NEEDED.
"""

from collections.abc import Mapping
from typing import Any

from forenotice.agent.config.handlers import Kubernetes
from forenotice.agent.handlers.interface import Outcome
from forenotice.agent.handlers.kubernetes.api import Api, ApiError, CredentialsError, connect
from forenotice.agent.handlers.kubernetes.cordon import cordon, uncordon
from forenotice.agent.handlers.kubernetes.draining import Drain
from forenotice.agent.handlers.kubernetes.patience import Patience
from forenotice.agent.rules.handling import Phase

NEEDED = (("get", "nodes", ""), ("patch", "nodes", ""), ("list", "pods", ""), ("create", "pods", "eviction"))
TO_ESCALATE = ("delete", "pods", "")


def run(config: Kubernetes, facts: Mapping[str, Any], until: float) -> Outcome:
    return carry_out(config, facts, Patience(until))


def carry_out(config: Kubernetes, facts: Mapping[str, Any], patience: Patience) -> Outcome:
    node = config.node or facts["name"].lower()
    try:
        with connect(config) as api:
            match Phase(facts["phase"]):
                case Phase.PREPARE:
                    patience.tell(cordon(api, patience, node, facts["event"]["EventId"]))
                    return Drain(api, patience, node, grace=config.grace_period, escalate=config.escalate).run()
                case Phase.RECOVER | Phase.UNDO:
                    return Outcome(ok=True, said=uncordon(api, patience, node))
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
