"""What all tasks share that label texts: data, training, prediction of splits, timing."""
