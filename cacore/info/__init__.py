"""``python -m cacore.info``: installed versions, each rank's resources, their speed, and anything wrong with them."""
