"""What is checked of structures and labels, and what a training set is like."""
