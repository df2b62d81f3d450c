"""How it is computed: the protocol of operations and the backends that implement it."""
