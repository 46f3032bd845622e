"""Components of GeoRouteNet that a recipe can pin, for ablations: held where they do nothing.

The network and its kernels run as always; only values are special. A pinned parameter is set once and never
moves: its gradient is left out, or, where only some of its columns are pinned, that of these columns is zero.
The others begin as they would without pins, so runs of one seed differ in the component alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from georoutenet.errors import InputError


@dataclass(frozen=True)
class Part:
    """Parameters of a component, by a pattern of their names, and the value they are held at."""

    pattern: str
    value: float | None = 0.0
    """None: the one they have when training begins."""
    inputs: tuple[int, int] | None = None
    """Of a weight, from which input up to which its columns are held; None: all of it."""


NO_DISTANCE = -1000.0
"""gamma of Eq. attention_logit with softplus(gamma) = 0, in float64 too."""

COMPONENTS: dict[str, tuple[Part, ...]] = {
    "distance-coefficient": (Part(r"layers\.\d+\.distance", NO_DISTANCE),),
    "edge-bias": (Part(r"layers\.\d+\.edge_bias\.weight"),),
    "edge-value": (Part(r"layers\.\d+\.edge_value\.weight"),),
    "feed-forward": (Part(r"layers\.\d+\.ffn_\w+\.(weight|bias)"),),
    "source-and-target": (Part(r"layers\.(?!LAST\.)\d+\.(source|target)\.weight"),),
    "radial-bases": (Part(r"rbf\.\w+", None),),
    "residual-attention": (Part(r"layers\.\d+\.residual_(query|key)\.weight"),),
    "centered-channels": (Part(r"node_input\.weight", inputs=(2, 5)),),
}
"""What each is without the component:

=====================  ==============================================================================
distance-coefficient   attention does not look at the distance, but for what edge states know of it
edge-bias              nor at edge states
edge-value             messages carry no edge states
feed-forward           a node's state is normalized once more, without what SwiGLU adds
source-and-target      edges do not read their cities before the last layer
radial-bases           centers and bandwidth stay as they begin
residual-attention     a node adds the mean of its earlier states, not a weighted one
centered-channels      a node's input is its coordinates alone
=====================  ==============================================================================
"""


def hold(policy: nn.Module, components: tuple[str, ...]) -> dict[str, Tensor | None]:
    """Set the components' parameters to their values. What is held: by a parameter's name a mask of its
    entries, or None if it is held as a whole."""
    if not components:
        return {}
    parameters = {name.removeprefix("encoder."): (name, p) for name, p in policy.named_parameters()}
    last = str(max((int(name.split(".")[1]) for name in parameters if name.startswith("layers.")), default=0))
    held: dict[str, Tensor | None] = {}
    for component in components:
        before = len(held)
        for part in COMPONENTS[component]:
            pattern = re.compile(part.pattern.replace("LAST", last))
            for short, (name, parameter) in parameters.items():
                if pattern.fullmatch(short):
                    held[name] = _hold(parameter, part)
        if len(held) == before:
            raise InputError(f"pin = {component!r} finds no parameter in a policy of these settings")
    return held


@torch.no_grad()
def _hold(parameter: nn.Parameter, part: Part) -> Tensor | None:
    if part.inputs is None:
        if part.value is not None:
            parameter.fill_(part.value)
        return None
    assert part.value is not None
    mask = torch.zeros_like(parameter, dtype=torch.bool)
    mask[:, slice(*part.inputs)] = True
    parameter[mask] = part.value
    return mask


def left_of(gradient: Tensor, name: str, held: Mapping[str, Tensor | None]) -> Tensor | None:
    """What is left of the gradient of a parameter."""
    if name not in held:
        return gradient
    mask = held[name]
    return None if mask is None else gradient.masked_fill(mask, 0.0)
