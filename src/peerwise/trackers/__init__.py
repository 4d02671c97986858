"""What happens in a run, told to TensorBoard, wandb and others, each in a process of its own. Knows no recipe."""
