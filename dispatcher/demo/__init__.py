"""What `lithify demo` is made of."""
