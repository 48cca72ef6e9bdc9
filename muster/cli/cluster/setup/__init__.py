"""Parts of `muster up`."""
