"""The tasks of kernel SVMs: classification, regression and one class."""
