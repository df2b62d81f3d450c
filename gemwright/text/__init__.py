"""What stands between text and token ids. Imports nothing of the project but its errors."""
