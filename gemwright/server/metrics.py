"""Metrics under the names that vLLM's dashboards and autoscalers read."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from gemwright.engine.pieces import Piece
from gemwright.server.service import Answering, Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABELS = ("model_name", "engine")
_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0),
)
_TOKENS = tuple(float(1 << power) for power in range(18))
_SMALL = (1.0, 2.0, 5.0, 10.0, 20.0)


class ServerMetrics:
    """Counts what a service does. Gauges and the engine's own counters are read when somebody asks."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self.prefix = service.settings.metrics_prefix
        self.labels = {"model_name": service.names[0], "engine": "0"}
        self._success = self._counter("request_success", "Answers that ended, by reason.", "finished_reason")
        self._rejected = self._counter("admission_rejections", "Requests refused at the door, by reason.", "reason")
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "Between two tokens of an answer.", _SECONDS)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time of an answer's tokens after the first.", _SECONDS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to the first step.", _SECONDS)
        self._inference = self._histogram("request_inference_time_seconds", "From the first step to the end.", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", "From the first step to a token.", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.", _SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generation = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._n = self._histogram("request_params_n", "Answers asked for.", _SMALL)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens as asked.", _TOKENS)
        # What every client library tells of its process, under the names it has everywhere.
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        service.watchers.append(self.watch)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)

    def reject(self, reason: str) -> None:
        """Count a request that was refused at the door."""
        self._rejected.labels(**self.labels, reason=reason).inc()

    def watch(self, answering: Answering, piece: Piece | None) -> None:
        """Take a piece, or with None the end of an answer, into account."""
        now = time.perf_counter()
        if piece is None:
            self._end(answering, now)
        elif piece.token_ids:
            if answering.last_token_at is None:
                self._ttft.observe(now - answering.arrived_at)
            else:
                self._between.observe(now - answering.last_token_at)

    def collect(self) -> Iterable[Metric]:
        """Yield what is read off the engine now."""
        engine = self.service.loaded_engine
        keys, values = list(_LABELS), [self.labels[name] for name in _LABELS]

        def gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
            found = GaugeMetricFamily(self.prefix + name, about, labels=keys)
            found.add_metric(values, value)
            return found

        def counter(name: str, about: str, value: float) -> CounterMetricFamily:
            found = CounterMetricFamily(self.prefix + name, about, labels=keys)
            found.add_metric(values, value)
            return found

        if engine is None:
            return
        counters, core = engine.counters, engine.llm.core
        yield gauge("num_requests_running", "Requests in the batch.", engine.num_running)
        yield gauge("num_requests_waiting", "Requests that wait for their first step.", engine.num_waiting)
        by_reason = GaugeMetricFamily(
            f"{self.prefix}num_requests_waiting_by_reason", "The same by reason.", labels=[*keys, "reason"]
        )
        by_reason.add_metric([*values, "capacity"], engine.num_waiting)
        yield by_reason
        yield gauge(
            "kv_cache_usage_perc", "Share of K/V blocks held by running requests, 0 to 1.", core.blocks.share_held
        )
        yield counter("prompt_tokens", "Tokens of prompts.", counters.prompt_tokens)
        yield counter("generation_tokens", "Tokens generated.", counters.completion_tokens)
        yield counter("num_preemptions", "Requests that had to give way.", counters.num_preemptions)
        yield counter("prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", counters.prompt_tokens)
        yield counter("prefix_cache_hits", "Prompt tokens found there.", counters.cached_tokens)
        yield counter("prompt_tokens_cached", "Prompt tokens that were not computed.", counters.cached_tokens)
        info = InfoMetricFamily(f"{self.prefix}cache_config", "How the K/V cache is laid out.", labels=keys)
        layout = engine.llm.engine.layout
        info.add_metric(
            values,
            {
                "block_size": str(layout.block_size),
                "num_gpu_blocks": str(sum(group.num_blocks for group in layout.groups)),
                "cache_dtype": engine.llm.engine.dtype,
                "enable_prefix_caching": str(core.limits.prefix_caching),
            },
        )
        yield info
        predicted = GaugeMetricFamily(
            f"{self.prefix}memory_predicted_bytes", "The plan, by line.", labels=[*keys, "line"]
        )
        actual = GaugeMetricFamily(
            f"{self.prefix}memory_actual_bytes", "What was allocated, by line.", labels=[*keys, "line"]
        )
        for line, measured in zip(engine.llm.engine.lines, engine.llm.engine.measured, strict=True):
            predicted.add_metric([*values, line.name], line.planned_bytes)
            actual.add_metric([*values, line.name], measured)
        yield predicted
        yield actual

    def _end(self, answering: Answering, now: float) -> None:
        params, labels = answering.asked.params, self.labels
        if answering.completion is None:
            reason = "abort" if answering.error is None else "error"
            self._success.labels(**labels, finished_reason=reason).inc()
            return
        for choice in answering.completion.choices:
            self._success.labels(**labels, finished_reason=str(choice.finish_reason)).inc()
        began = answering.started_at or now
        first, last = answering.first_token_at or now, answering.last_token_at or now
        self._whole.observe(now - answering.arrived_at)
        self._queue.observe(began - answering.arrived_at)
        self._inference.observe(now - began)
        self._prefill.observe(first - began)
        self._decode.observe(last - first)
        self._prompt.observe(answering.asked.num_prompt_tokens)
        self._generation.observe(answering.num_tokens)
        self._n.observe(params.n)
        self._max_tokens.observe(params.max_tokens)
        if answering.num_tokens > 1:
            self._per_token.observe((last - first) / (answering.num_tokens - 1))

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(self.prefix + name, about, (*_LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        # The child is found once: to look its labels up takes longer than to count.
        found = Histogram(self.prefix + name, about, _LABELS, buckets=buckets, registry=self.registry)
        return found.labels(**self.labels)
