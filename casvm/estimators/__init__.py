"""scikit-learn estimators of kernel SVMs: exact in one process, exact on all ranks, and in parts."""
