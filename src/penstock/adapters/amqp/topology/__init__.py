"""What a virtual host is made of: exchanges, bindings, queues, and the ways between them."""
