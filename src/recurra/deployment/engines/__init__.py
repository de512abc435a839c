"""What computes logits from texts, and what it says of how deep it went."""
