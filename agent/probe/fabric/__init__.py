"""What a node knows of RDMA: read from sysfs, proc and a few files below a root, and judged by the
rules of `muster.fabric`.

Any file may be absent, empty, unreadable or wrong; what cannot be read is unknown and says why.
"""
