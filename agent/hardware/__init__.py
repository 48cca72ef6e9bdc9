"""What the hardware of this node reports of itself, through its kernel."""
