"""The one decoder, over ops: follows the list of LayerSpecs and knows no family.

Formulas: facts b.0 to b.4. Every line that a family could change reads a field of a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gemwright.memory.kv_layout import KVLayout
from gemwright.models.weights import ExpertWeights, LayerWeights, ModelWeights, PerLayerWeights
from gemwright.ops.protocol import Buffer, Cache, Indices, KeysFromValues, Ops, RotaryTable, StepInputs
from gemwright.spec.model_spec import LayerSpec, ModelSpec, RopeSpec

OnLayer = Callable[[int, Buffer], None]
"""Called with a layer's index and the residual [T, H] after it; for tests that look for the first difference."""


class Decoder:
    """Runs steps: new tokens in, K/V into the cache, hidden states and logits out."""

    def __init__(
        self,
        spec: ModelSpec,
        ops: Ops,
        weights: ModelWeights,
        layout: KVLayout,
        cache: Cache,
        buffers: Mapping[str, Buffer],
    ) -> None:
        self.spec = spec
        self.ops = ops
        self.weights = weights
        self.cache = cache
        self.buffers = buffers
        tables: dict[tuple[RopeSpec, int], RotaryTable] = {}
        for layer in spec.layers:
            key = (layer.rope, layer.head_dim)
            if key not in tables:
                tables[key] = ops.rotary_table(layer.rope, layer.head_dim)
        self.rotary_tables = tuple(tables[(layer.rope, layer.head_dim)] for layer in spec.layers)
        self.group_of_layer = layout.group_of_layer
        self.rebuilds = tuple(self._rebuild(layer, layout) for layer in spec.layers)

    def forward(self, step: StepInputs, on_layer: OnLayer | None = None) -> Buffer:
        """Run the step's tokens and return the residual of its logit rows [R, H], before the final norm.

        All tokens pass the layers up to the last one that owns K/V. The layers after it (20 of 35 in E2B, 18 of 42 in
        E4B) see only the rows whose logits are wanted, since the others leave nothing behind there ("fast prefill").
        """
        ops, spec = self.ops, self.spec
        first_narrow = spec.first_layer_after_kv
        residual = self._view("residual", len(step.token_ids), spec.hidden_size)
        ops.embed(self.weights.embedding, step.token_ids, spec.embedding_scale, residual)
        per_layer_inputs = self._per_layer_inputs(step, residual)
        for layer, weights in zip(spec.layers, self.weights.layers, strict=True):
            if layer.index == first_narrow:
                residual, per_layer_inputs = self._keep_logit_rows(step, residual)
                step = step.only_logit_rows()
                if len(step.token_ids) == 0:
                    return residual
            self._attend(layer, weights, step, self.group_of_layer[layer.index], residual)
            self._feed_forward(layer, weights, residual)
            if weights.per_layer is not None:
                self._add_per_layer_input(weights.per_layer, per_layer_inputs[layer.index], residual)
            if weights.scalar is not None:
                ops.multiply(residual, weights.scalar, residual)
            if on_layer is not None:
                on_layer(layer.index, residual)
        if first_narrow == spec.num_layers:
            residual, _ = self._keep_logit_rows(step, residual)
        return residual

    def logits(self, residual: Buffer, rows: Indices) -> Buffer:
        """Return float32 logits [rows, V] of some rows of forward's result, after the final softcap; at most
        LOGIT_ROWS rows at once."""
        ops, spec = self.ops, self.spec
        selected = self._view("selected", len(rows), spec.hidden_size)
        ops.gather_rows(residual, rows, selected)
        self._norm(selected, self.weights.final_norm, selected)
        logits = self._view("logits", len(rows), spec.vocab_size)
        ops.head(selected, self.weights.head, spec.final_softcap, logits)
        return logits

    def _rebuild(self, layer: LayerSpec, layout: KVLayout) -> KeysFromValues | None:
        """Return how the keys that a layer reads come from values, or None where they are stored."""
        if layout.groups[layout.group_of_layer[layer.index]].stores_keys:
            return None
        assert layer.kv_source is not None
        return KeysFromValues(self.weights.layers[layer.kv_source].key_norm, self.rotary_tables[layer.kv_source])

    def _attend(self, layer: LayerSpec, weights: LayerWeights, step: StepInputs, group: int, residual: Buffer) -> None:
        ops, spec = self.ops, self.spec
        num_tokens = len(step.token_ids)
        table = self.rotary_tables[layer.index]
        normed = self._view("normed", num_tokens, spec.hidden_size)
        self._norm(residual, weights.input_norm, normed)
        # The buffer has room for q, k and v; a layer projects as many of them as it has weights for.
        widths = (layer.query_width, layer.kv_width, layer.kv_width)
        num_projected = 1 if not layer.owns_kv else 2 if layer.k_equals_v else 3
        projected = self._view("projected", num_tokens, sum(widths))
        ops.linear(normed, weights.projections, ops.split(projected, (sum(widths[:num_projected]),))[0])
        query, key, value = ops.split(projected, widths)
        if weights.query_norm is not None:
            ops.rms_norm(query, weights.query_norm, spec.norm_eps, layer.head_dim, query)
        ops.rotary(query, table, step.positions)
        if layer.owns_kv:
            if layer.value_norm:
                ops.rms_norm(key if layer.k_equals_v else value, None, spec.norm_eps, layer.head_dim, value)
            if self.rebuilds[layer.index] is not None:
                ops.write_cache(self.cache, layer.index, None, value, step.slots[group])
            else:
                if weights.key_norm is not None:
                    ops.rms_norm(key, weights.key_norm, spec.norm_eps, layer.head_dim, key)
                ops.rotary(key, table, step.positions)
                ops.write_cache(self.cache, layer.index, key, value, step.slots[group])
        attended = self._view("attended", num_tokens, layer.query_width)
        ops.attention(
            query,
            self.cache,
            layer.index,
            step.ranges[group],
            layer.attention_scale,
            layer.attention_softcap,
            attended,
            self.rebuilds[layer.index],
        )
        branch = self._view("branch", num_tokens, spec.hidden_size)
        ops.linear(attended, weights.attention_output, branch)
        self._norm(branch, weights.post_attention_norm, branch)
        ops.add(residual, branch, residual)

    def _feed_forward(self, layer: LayerSpec, weights: LayerWeights, residual: Buffer) -> None:
        ops = self.ops
        num_tokens, hidden = residual.shape
        normed = self._view("normed", num_tokens, hidden)
        branch = self._view("branch", num_tokens, hidden)
        self._norm(residual, weights.pre_feed_forward_norm, normed)
        width = layer.feed_forward_width
        gate_up = self._view("gate_up", num_tokens, 2 * width)
        ops.linear(normed, weights.gate_up, gate_up)
        gated = self._view("gated", num_tokens, width)
        gate, up = ops.split(gate_up, (width, width))
        ops.gelu_gate(gate, up, gated)
        ops.linear(gated, weights.down, branch)
        if weights.experts is not None:
            self._add_experts(layer, weights.experts, residual, branch)
        self._norm(branch, weights.post_feed_forward_norm, branch)
        ops.add(residual, branch, residual)

    def _add_experts(self, layer: LayerSpec, weights: ExpertWeights, residual: Buffer, branch: Buffer) -> None:
        """Turn the dense branch into norm(dense) + norm(experts); the router sees the residual, not its norm."""
        assert layer.experts is not None
        ops, hidden = self.ops, self.spec.hidden_size
        normed = self._view("normed", residual.shape[0], hidden)
        mixed = self._view("experts", residual.shape[0], hidden)
        self._norm(branch, weights.post_dense_norm, branch)
        self._norm(residual, None, normed)
        ops.multiply(normed, weights.router_scale, normed)
        ops.multiply(normed, hidden**-0.5, normed)
        chosen = ops.route(normed, weights.router, weights.per_expert_scale, layer.experts.num_experts_per_token)
        self._norm(residual, weights.pre_experts_norm, normed)
        ops.experts(normed, chosen, weights.gate_up, weights.down, mixed)
        self._norm(mixed, weights.post_experts_norm, mixed)
        ops.add(branch, mixed, branch)

    def _per_layer_inputs(self, step: StepInputs, embedded: Buffer) -> tuple[Buffer, ...]:
        """Return each layer's input [T, width], from the token's own row and from its embedding."""
        spec, ops, weights = self.spec, self.ops, self.weights
        if spec.per_layer_inputs is None:
            return ()
        width = spec.per_layer_inputs.width
        packed = spec.num_layers * width
        inputs = self._view("per_layer_inputs", len(step.token_ids), packed)
        ops.linear(embedded, weights.per_layer_model_projection, inputs)
        ops.multiply(inputs, spec.hidden_size**-0.5, inputs)
        ops.rms_norm(inputs, weights.per_layer_projection_norm, spec.norm_eps, width, inputs)
        own = self._view("per_layer_scratch", len(step.token_ids), packed)
        ops.embed(weights.per_layer_embedding, step.token_ids, width**0.5, own)
        ops.add(inputs, own, inputs)
        ops.multiply(inputs, 2.0**-0.5, inputs)
        return ops.split(inputs, (width,) * spec.num_layers)

    def _keep_logit_rows(self, step: StepInputs, residual: Buffer) -> tuple[Buffer, tuple[Buffer, ...]]:
        """Copy the wanted rows of the residual, and of the per-layer inputs where the model has them."""
        ops, spec = self.ops, self.spec
        num_rows = len(step.logit_rows)
        wanted = self._view("wanted", num_rows, spec.hidden_size)
        ops.gather_rows(residual, step.logit_rows, wanted)
        if spec.per_layer_inputs is None:
            return wanted, ()
        width = spec.per_layer_inputs.width
        packed = spec.num_layers * width
        inputs = self._view("per_layer_scratch", num_rows, packed)
        ops.gather_rows(self._view("per_layer_inputs", len(step.token_ids), packed), step.logit_rows, inputs)
        return wanted, ops.split(inputs, (width,) * spec.num_layers)

    def _add_per_layer_input(self, weights: PerLayerWeights, inputs: Buffer, residual: Buffer) -> None:
        ops = self.ops
        num_tokens, width = inputs.shape
        gate = self._view("gate_up", num_tokens, width)
        gated = self._view("gated", num_tokens, width)
        branch = self._view("branch", num_tokens, self.spec.hidden_size)
        ops.linear(residual, weights.gate, gate)
        ops.gelu_gate(gate, inputs, gated)
        ops.linear(gated, weights.projection, branch)
        self._norm(branch, weights.post_norm, branch)
        ops.add(residual, branch, residual)

    def _norm(self, x: Buffer, weight: object, out: Buffer) -> None:
        self.ops.rms_norm(x, weight, self.spec.norm_eps, self.spec.hidden_size, out)

    def _view(self, name: str, rows: int, width: int) -> Buffer:
        return self.ops.view(self.buffers[name], rows, width)
