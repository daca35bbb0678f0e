"""The engine behind the OpenAI API: an HTTP server for one model, with continuous batching and a bounded queue."""
