"""What all kernel SVMs share: the dual problem, its solvers' contract, decisions, the classifier's face."""
