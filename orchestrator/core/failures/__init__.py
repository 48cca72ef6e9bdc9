"""From an exit status, an error file and the last lines of a rank to the cause of a failure."""
