"""Programs for developers; nothing of the product imports them."""
