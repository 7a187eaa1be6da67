"""LoRA goes out to peft, and as merged weights to transformers."""
