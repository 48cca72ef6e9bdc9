"""Pure: the bodies and answers of the HTTP API, which the coordinator fills in and the client
reads."""
