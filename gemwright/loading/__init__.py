"""From files to the tensors that spec.weights lists: readers, and what matches a file to a spec."""
