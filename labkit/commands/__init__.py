"""One file a verb of the `lab` command; each defines a click command named `command`."""
