"""Log-probability and entropy of given tours, without a step loop.

The scores are static and every city is the current one exactly once, so the cities still unvisited when a
tour stands at ``i`` are those with a later position. All ``n - 1`` transition distributions of a tour
(Eq. masked_transition) are therefore rows of one masked ``n x n`` log-softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.decode.common import FLOOR

FUSED_CITIES = 1024
"""Up to this many cities float32 scores on CUDA are replayed by the kernels of `decode.gpu.replay`."""


def replay(start: Tensor, logits: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities ``(B, M)`` (Eq. candidate_logprob) and path entropies ``(B, M)`` (Eq. path_entropy).

    ``start (B, n)`` holds log-probabilities, ``logits (B, n, n)`` directed edge logits, ``tours (B, M, n)``
    permutations. Differentiable in ``start`` and ``logits``; computes in their dtype.
    """
    is_single = start.dtype == logits.dtype == torch.float32
    if logits.is_cuda and is_single and logits.shape[1] <= FUSED_CITIES:
        from georoutenet.decode.gpu.replay import replay_fused

        return replay_fused(start, logits, tours)
    return replay_reference(start, logits, tours)


def replay_reference(start: Tensor, logits: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
    """`replay` as one expression over ``(B, M, n, n)``, for any device and dtype."""
    batch, tours_per_instance, n = tours.shape
    steps = torch.arange(n, device=tours.device).expand(batch, tours_per_instance, n)
    position = torch.empty_like(tours).scatter(2, tours, steps)  # (B, M, n): when each city is visited
    later = position[:, :, None, :] > position[:, :, :, None]  # (B, M, n, n): j unvisited while at i
    # The last city has no choice left: its row keeps one harmless entry and is then left out.
    final = (position == n - 1)[..., None]  # (B, M, n, 1)
    allowed = later | final

    # A finite fill keeps 0 * inf out of the backward pass; the row's own largest allowed logit is
    # subtracted first, so a row whose probable cities are all visited does not underflow.
    edges = logits.clamp(min=FLOOR)[:, None].expand(-1, tours_per_instance, -1, -1)
    largest = edges.detach().masked_fill(~allowed, -torch.inf).amax(dim=3, keepdim=True)
    shifted = (edges - largest).masked_fill(~allowed, 0.0)
    weights = shifted.exp() * allowed
    total = weights.sum(dim=3, keepdim=True)
    log_total = total.log()

    # The successor is picked by its position: a gather's gradient would scatter into (B, M, n, n).
    chooses = position[:, :, None, :] == position[:, :, :, None] + 1
    chosen = (shifted * chooses).sum(dim=3, keepdim=True) - log_total
    log_probability = chosen.masked_fill(final, 0.0).sum(dim=(2, 3))
    log_probability = log_probability + start.gather(1, tours[:, :, 0])

    # H = log(total) - sum_j p_j (z_j - largest): no log of a vanishing probability is taken.
    row_entropy = log_total - (weights * shifted).sum(dim=3, keepdim=True) / total
    entropy = row_entropy.masked_fill(final, 0.0).sum(dim=(2, 3)) + start_entropy(start)[:, None]
    return log_probability, entropy


def start_entropy(start: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the start distribution, Eq. categorical_entropy; zero probabilities add nothing."""
    finite = start.clamp(min=torch.finfo(start.dtype).min)
    return -(finite.exp() * finite).sum(dim=1)
