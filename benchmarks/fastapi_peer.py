"""An export behind FastAPI as a tutorial would write it: one endpoint, default options, no batches over requests.

python -m benchmarks.fastapi_peer EXPORT PORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from onnxruntime import InferenceSession
from pydantic import BaseModel
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
labels: list[str] = manifest["label_names"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation(manifest["max_length"])
tokenizer.enable_padding(pad_id=manifest["pad_token_id"])
session = InferenceSession(str(folder / "model.onnx"))
app = FastAPI()


class Request(BaseModel):
    text: list[str]


@app.post("/v1/classify")
def classify(request: Request) -> list[dict[str, float]]:
    rows = tokenizer.encode_batch(request.text)
    inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    (logits,) = session.run(None, {name: np.array(value, dtype=np.int64) for name, value in inputs.items()})
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return [dict(zip(labels, row, strict=True)) for row in (exponents / exponents.sum(axis=1, keepdims=True)).tolist()]


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
