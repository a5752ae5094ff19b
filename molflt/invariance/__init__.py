"""Tests of the invariances of a model's energy, for any model and any structures."""
