"""Measures: load, latency, and the plan beside what a process takes."""
