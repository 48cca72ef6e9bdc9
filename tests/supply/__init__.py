"""What is installed and from where: the files of hashes, and the bill of materials."""
