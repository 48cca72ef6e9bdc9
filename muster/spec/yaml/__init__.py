"""Loading of YAML and JSON for job files: structure without types, with positions for errors.

The parser, the command line and the API call it. It knows no key of a job, and never makes an
object of a class that the document names.
"""
