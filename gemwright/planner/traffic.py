"""What a step reads and computes: weights that are streamed, K/V that sequences read, operations of both.

Refuses to know any device.
"""

from __future__ import annotations

from functools import cached_property

from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart
from gemwright.spec.model_spec import ExpertSpec, LayerKind, LayerSpec, ModelSpec

_GATHERED = ("embedding", "per-layer embedding")
_ASIDE = ("vision", "audio", "projector", "drafter", "unused")


class Traffic:
    """Bytes and operations of one model under one estimate, over all devices together."""

    def __init__(self, spec: ModelSpec, settings: PlanSettings, estimate: Estimate, num_tensor_parts: int = 1) -> None:
        """`num_tensor_parts`: devices of a tensor split, each of which holds what the K/V facts say."""
        self._spec = spec
        self._parts = estimate.weights
        self._groups = estimate.kv.groups
        self._num_tensor_parts = num_tensor_parts
        self._skips_rows = settings.engine == "gemwright"
        """Whether rows of a prompt whose logits nobody wants leave after the last layer that owns K/V."""
        self.num_layers = spec.num_layers
        self.hidden_size = spec.hidden_size

    @cached_property
    def experts(self) -> ExpertSpec | None:
        """The experts of the layers that have any, which are all alike."""
        return next((layer.experts for layer in self._spec.layers if layer.experts is not None), None)

    @property
    def is_mixture(self) -> bool:
        """Whether experts are chosen token by token."""
        return self.experts is not None

    @property
    def drafter_bytes(self) -> int:
        """What one drafted token reads of the drafter's weights."""
        return sum(part.size_bytes for part in self._parts if part.name == "drafter")

    @property
    def all_weights_bytes(self) -> float:
        """What a step of ever more tokens reads of the weights: every expert."""
        return self._streamed(1.0)

    def weights_bytes(self, num_tokens: int) -> float:
        """Return what a step of so many tokens reads of the weights.

        The embedding is gathered and not streamed, but is streamed once as the head where the two are one; tables of
        per-layer embeddings are gathered. Of E experts, of which each token has k, a step of B tokens reads
        E (1 - (1 - k/E)^B), as if tokens chose independently.
        """
        experts = self.experts
        if experts is None:
            return self._streamed(1.0)
        chosen = experts.num_experts_per_token / experts.num_experts
        return self._streamed(1.0 - (1.0 - chosen) ** num_tokens)

    def kv_bytes(self, context: int) -> float:
        """Return what a new token of one sequence reads of keys and values: a layer that shares another's K/V reads
        them again, and a window bounds what is read."""
        total = 0.0
        for group in self._groups:
            is_full = group.window is None
            owners = sum(other.num_layers for other in self._groups if (other.window is None) is is_full)
            readers = sum((layer.window is None) is is_full for layer in self._spec.layers)
            cells = context if group.window is None else min(context, group.window)
            total += group.num_layers * readers / owners * group.token_bytes * cells
        return total * self._num_tensor_parts

    def step_bytes(self, context: int, num_seqs: int, num_tokens: int = 1) -> int:
        """Return what one step reads in which each sequence has `num_tokens` new tokens at length `context`."""
        return round(self.weights_bytes(num_seqs * num_tokens) + num_seqs * self.kv_bytes(context))

    def step_flops(self, context: int, num_seqs: int, num_tokens: int = 1) -> int:
        """Return the operations of such a step: two for each parameter and token, and attention."""
        attention = sum(4 * layer.query_width * _reach(layer, context) for layer in self._spec.layers)
        products = 2 * (self._layer_parameters + self._head_parameters)
        return round(num_seqs * num_tokens * (products + attention))

    def prefill_product_flops(self, prompt: int) -> float:
        """Return the operations of a prompt's matrix products: the head sees its last token alone."""
        share = self._share_of_layers_with_kv if self._skips_rows else 1.0
        rows = share * prompt + (1.0 - share)
        return 2.0 * (self._layer_parameters * rows + self._head_parameters)

    def prefill_attention_flops(self, prompt: int) -> float:
        """Return the operations of attention over a prompt: four for each query, key it sees, and value of a head."""
        total = 0.0
        for layer in self._spec.layers:
            is_left = self._skips_rows and layer.index >= self._spec.first_layer_after_kv
            pairs = _reach(layer, prompt) if is_left else causal_pairs(prompt, layer.window)
            total += 4.0 * layer.query_width * pairs
        return total

    def _streamed(self, share_of_experts: float) -> float:
        return sum(part.size_bytes * self._share(part, share_of_experts) for part in self._parts)

    def _share(self, part: WeightPart, share_of_experts: float) -> float:
        if part.name in _ASIDE or part.name == "per-layer embedding":
            return 0.0
        if part.name == "embedding":
            return 0.0 if self._has_own_head else 1.0
        return share_of_experts if part.name == "experts" else 1.0

    @cached_property
    def _has_own_head(self) -> bool:
        return any(part.name == "head" for part in self._parts)

    @cached_property
    def _head_parameters(self) -> int:
        name = "head" if self._has_own_head else "embedding"
        return sum(part.num_parameters for part in self._parts if part.name == name)

    @cached_property
    def _layer_parameters(self) -> float:
        """Those that a token meets in the layers."""
        experts = self.experts
        chosen = 1.0 if experts is None else experts.num_experts_per_token / experts.num_experts
        parts = [part for part in self._parts if part.name not in (*_GATHERED, *_ASIDE, "head", "norms")]
        return sum(part.num_parameters * (chosen if part.name == "experts" else 1.0) for part in parts)

    @cached_property
    def _share_of_layers_with_kv(self) -> float:
        sizes = [_num_products(layer, self.hidden_size) for layer in self._spec.layers]
        return sum(sizes[: self._spec.first_layer_after_kv]) / sum(sizes)


def causal_pairs(num_tokens: int, window: int | None) -> int:
    """Return how many pairs of a query and a key it sees a prompt has: n (n + 1) / 2, or, past a window w, w more for
    each token."""
    reach = num_tokens if window is None else min(window, num_tokens)
    return reach * (reach + 1) // 2 + (num_tokens - reach) * reach


def _reach(layer: LayerSpec, context: int) -> int:
    return context if layer.kind is LayerKind.FULL or layer.window is None else min(context, layer.window)


def _num_products(layer: LayerSpec, hidden_size: int) -> int:
    """Return the values of a layer's matrices, experts aside."""
    kv = (1 if layer.k_equals_v else 2) * layer.kv_width if layer.owns_kv else 0
    return hidden_size * (2 * layer.query_width + kv + 3 * layer.feed_forward_width)
