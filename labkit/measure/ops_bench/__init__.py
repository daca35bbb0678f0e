"""`lab bench ops`: one operation at a time, timed over buffers that outgrow the caches, its result checked at once."""
