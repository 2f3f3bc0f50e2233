"""The search for a model within a time: candidates, the rows that judge them, the race, and the blend of the best."""
