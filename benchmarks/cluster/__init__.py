"""A simulated cluster: every virtual rank really computes, in turn, and a network model adds the communication."""
