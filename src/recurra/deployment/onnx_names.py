"""Names of what goes into the ONNX graph and comes out of it. Imports neither onnx nor torch."""

from __future__ import annotations

INPUT_IDS = "input_ids"
MASK = "attention_mask"
RECURRENCES = "num_recurrences"
CONFIDENCES = "exit_confidences"
ENTROPIES = "exit_entropies"
LOGITS = "logits"
EXITED_AFTER = "exited_after"
EXIT_LOGITS = "exit_logits"
