"""The lock file of hashed requirements and the software bill of materials."""
