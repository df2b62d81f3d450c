"""How a model is driven: requests, scheduler, steps, sampling, results."""
