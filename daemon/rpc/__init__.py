"""The wire: transports carry frames, a connection runs their requests, dispatch maps methods to handlers and errors."""
