"""Search for C and gamma inside parts: kernel matrices that fit in cache, shared by all folds, and paths along C."""
