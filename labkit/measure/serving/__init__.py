"""Requests to a server in numbers: rows of a record, latencies, rates, residents and saturation, from their answers."""
