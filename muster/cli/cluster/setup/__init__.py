"""Parts of `muster up`: the files of a new cluster, its certificate, and the options of an earlier
run.

Only `muster.cli.cluster.up` calls them. They write files for a coordinator and never start one.
"""
