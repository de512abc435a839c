"""From a corpus or a user's file to cleaned, split, tokenised, length-grouped batches."""
