"""What the fabric plan of a large gang costs."""
