"""How well hangs are told from what is merely slow, and how soon; what watching costs."""
