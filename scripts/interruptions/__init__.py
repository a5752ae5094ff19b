"""What chaos.py is made of: jobs, ways of striking them, and how their outcomes are compared."""
