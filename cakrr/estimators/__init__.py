"""The methods as scikit-learn estimators."""
