"""The doctor: it looks at a queue and says what is wrong, which keys, and the way out."""
