"""Protocol between the two daemons and their users: messages, identifiers, states, codes.

Everything else imports it. The package is pure: nothing here sends, reads or measures.
"""
