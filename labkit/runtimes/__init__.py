"""Other engines asked the same questions: llama-server, started, measured over its own interface, and stopped."""
