"""Models for programs that do not use molflt."""
