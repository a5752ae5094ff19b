"""Training: Lightning module, data module, losses, metrics, schedules."""
