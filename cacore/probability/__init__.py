"""Class probabilities: decisions on held-out rows, calibration curves fitted to them, and coupling of class pairs."""
