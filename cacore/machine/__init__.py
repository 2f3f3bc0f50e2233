"""Resources of this machine: processor, threads, memory and scratch files."""
