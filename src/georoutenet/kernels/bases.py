"""The few numbers that a pass starts from, in one CUDA kernel a pass (`bases.cu`).

    c = sort(sqrt(2) sigmoid(a)),    w = max(exp(rho), 10^-3),    lambda_l = softplus(gamma_l)

are Eq. rbf_parameterization, and every layer's weight of the distance in Eq. attention_logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import Kernel

if TYPE_CHECKING:
    from georoutenet.model.georoutenet import GeoRouteNet

LAYERS = 6  # at most
FORWARD = Kernel("bases.cu", "bases", warps=1, shared=0)
BACKWARD = Kernel("bases.cu", "bases_backward", warps=1, shared=0)

Start = tuple[Tensor, Tensor, list[Tensor]]
"""Centers ``(K_rbf,)``, bandwidth ``()``, and ``lambda_l ()`` of every layer."""


def bases_reference(net: GeoRouteNet) -> Start:
    return *net.rbf.parameters_of_bases(), [layer.strength() for layer in net.layers]


def bases(net: GeoRouteNet) -> Start:
    """`bases_reference` in one kernel, for at most six layers and 32 bases."""
    given = (net.rbf.centers, net.rbf.log_bandwidth, *(layer.distance for layer in net.layers))
    centers, bandwidth, *strengths = _Bases.apply(*given)
    return centers, bandwidth, strengths


def _parts(x: Tensor, count: int) -> tuple[Tensor, ...]:
    return x[:count], *x[count:].unbind()


def _padded(layers: Sequence[Tensor]) -> list[Tensor]:
    return [*layers, *[layers[0]] * (LAYERS - len(layers))]


class _Bases(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, centers: Tensor, bandwidth: Tensor, *layers: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(centers, bandwidth, *layers)
        count = len(centers)
        out = centers.new_empty(count + 1 + len(layers))
        FORWARD(centers, bandwidth, *_padded(layers), out, count, len(layers), blocks=1)
        return _parts(out, count)

    @staticmethod
    def backward(
        ctx: Any, of_centers: Tensor, of_bandwidth: Tensor, *of_layers: Tensor
    ) -> tuple[Tensor, ...]:
        centers, bandwidth, *layers = ctx.saved_tensors
        count = len(centers)
        out = centers.new_empty(count + 1 + len(layers))
        BACKWARD(
            centers, bandwidth, *_padded(layers), of_centers.contiguous(), of_bandwidth, *_padded(of_layers),
            out, count, len(layers), blocks=1,
        )  # fmt: skip
        return _parts(out, count)
