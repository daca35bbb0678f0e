"""Pictures of what was measured, one kind a file: raw points with their interval, the claim as the title."""
