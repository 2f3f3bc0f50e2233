"""Rows of data with their targets and labels: dense, CSR or in a file, on one rank or many."""
