"""What a Gemma is: data, read from configs, with the list of its tensors."""
