"""Engines behind one interface: labkit itself, llama.cpp and any OpenAI-compatible endpoint, started, loaded and asked."""
