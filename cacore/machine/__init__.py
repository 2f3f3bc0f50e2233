"""What this machine has: threads and memory."""
