"""What an operator may set, declared once; flags, environment and help derive from it."""
