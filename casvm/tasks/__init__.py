"""What kernel SVMs learn: classes, and values of a regression or of one class."""
