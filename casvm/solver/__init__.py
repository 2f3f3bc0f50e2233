"""The exact solver of the dual."""
