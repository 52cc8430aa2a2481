"""Keeping new pods away from a node, and letting them in again if it was us who kept them away.

Whose cordon it is stands on the node itself, so it is known even when this VM has lost all that it knew: in our mark,
and in what the API server keeps of who changed which field. The mark alone would outlast an uncordon by somebody else.
"""

from forenotice.agent.handlers.kubernetes.api import MANAGER, Api, ApiError
from forenotice.agent.handlers.kubernetes.objects import Node
from forenotice.agent.handlers.kubernetes.patience import Patience

MARK = "forenotice/cordoned-by"
"""Annotation of a node that we cordoned: the id of the event for which we did."""


def cordon(api: Api, patience: Patience, name: str, event: str) -> str:
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

    return patience.keep_asking(once)


def uncordon(api: Api, patience: Patience, name: str) -> str:
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

    return patience.keep_asking(once)


def _is_ours(node: Node) -> bool:
    marked = node.metadata.annotation(MARK) is not None
    return marked and (not node.cordoned_by or MANAGER in node.cordoned_by)
