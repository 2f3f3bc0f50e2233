"""The tasks of kernel SVMs: classes; regression and one class."""
