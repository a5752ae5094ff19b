"""What a model's energy must not depend on, measured on any model and any structures."""
