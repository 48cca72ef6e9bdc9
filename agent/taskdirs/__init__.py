"""Task directories, created closed to others and removed without following a link."""
