"""Prompts to measure with: texts of several content types, made from a seed, of an exact number of tokens."""
