"""Connection to the coordinator: dialing, the control link, and the owner's inbox.

The daemon starts it. It delivers messages in order and reconnects for ever. It never interprets a
message.
"""
