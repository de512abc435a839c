"""The classifier as an ONNX graph: names of its inputs and outputs. Imports neither onnx nor torch."""

MODEL_NAME = "model.onnx"
INPUT_IDS = "input_ids"
MASK = "attention_mask"
RECURRENCES = "num_recurrences"
CONFIDENCES = "exit_confidences"
ENTROPIES = "exit_entropies"
LOGITS = "logits"
EXITED_AFTER = "exited_after"
EXIT_LOGITS = "exit_logits"
# Inputs of a static model, and of a model of n-grams.
PIECES, WORDS, CHARACTERS = "pieces", "words", "characters"
