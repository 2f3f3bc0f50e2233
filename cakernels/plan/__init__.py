"""Plans: seconds, memory, flops and messages of a training before it starts, from short runs of the method."""
