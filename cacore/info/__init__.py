"""``python -m cacore.info``: what is installed, what each rank was given, how fast that is, and what is wrong."""
