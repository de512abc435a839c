"""The classifier as an ONNX graph: what it takes and gives. Imports neither onnx nor torch."""

MODEL_NAME = "model.onnx"
INPUT_IDS = "input_ids"
MASK = "attention_mask"
RECURRENCES = "num_recurrences"
CONFIDENCES = "exit_confidences"
ENTROPIES = "exit_entropies"
LOGITS = "logits"
EXITED_AFTER = "exited_after"
EXIT_LOGITS = "exit_logits"
# What a static model takes, and one of n-grams.
PIECES, WORDS, CHARACTERS = "pieces", "words", "characters"
