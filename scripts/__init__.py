"""Commands of the repository that are not installed with the package: ``python -m scripts.FOLDER.NAME``."""
