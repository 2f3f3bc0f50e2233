"""The methods that train an SVM on many ranks."""
