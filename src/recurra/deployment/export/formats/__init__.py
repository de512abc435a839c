"""The formats that a run can be exported as, one module each."""
