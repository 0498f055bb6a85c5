"""What on this machine limits how fast images load, and what to do about it."""
