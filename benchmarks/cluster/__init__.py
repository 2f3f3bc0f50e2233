"""A cluster that this machine does not have: every rank really computes, in turn, and a network model adds the rest."""
