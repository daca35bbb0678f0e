"""Model files and what they hold: GGUF reader, tokenizer, chat template, catalogue, one file an architecture."""
