"""The energy model: embedding, encoder, heads, configuration, model file."""
