"""Rows of data: on one rank or many, dense or CSR, with their targets and labels."""
