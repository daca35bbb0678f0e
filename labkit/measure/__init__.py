"""Metrics with their definitions, timing, statistics and the device's own ceilings."""
