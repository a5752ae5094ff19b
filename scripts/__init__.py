"""What is run in the repository and not installed with the package: ``python -m scripts.FOLDER.NAME``."""
