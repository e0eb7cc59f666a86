"""Replace in-place operators of a trace by their functional forms where that is equivalent.

The tracer already redirects later uses of a tensor to the in-place result. The remaining case is a
view of the same memory that is read afterwards: it has the new values in torch, and the old ones in
a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from aggregator.extensions.authoring.errors import ExportError


def functional(node: fx.Node) -> Any:  # noqa: ANN401 - torch's operators have no type
    """Return the operator of a node, an in-place one as its functional form.

    Raises:
        ExportError: The changed memory is read through another view afterwards.
    """
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:  # noqa: SLF001
        return target
    name = target._schema.name.split("::")[1]  # noqa: SLF001 - the schema has no public reader
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    ordinary = getattr(packet, target._overloadname, None)  # noqa: SLF001
    if not name.endswith("_") or ordinary is None:
        return target
    if _read_later(node):
        raise ExportError(
            f"{target} changes memory that is read again through a view; use {name[:-1]}"
        )
    return ordinary


def _read_later(node: fx.Node) -> bool:
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    order = {each: place for place, each in enumerate(node.graph.nodes)}
    root = changed
    while _is_view(root) and isinstance(root.args[0], fx.Node):
        root = root.args[0]
    aliases, grown = {root}, [root]
    while grown:
        views = {user for user in grown.pop().users if _is_view(user)} - aliases
        aliases |= views
        grown += views
    readers = (user for alias in aliases for user in alias.users if user is not node)
    return any(order[user] > order[node] for user in readers)


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view  # noqa: SLF001
