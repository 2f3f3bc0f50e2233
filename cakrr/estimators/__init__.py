"""scikit-learn estimators of kernel ridge regression: exact, in parts, and on two levels."""
