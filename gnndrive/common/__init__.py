"""Code that all other folders use; it imports none of them."""
