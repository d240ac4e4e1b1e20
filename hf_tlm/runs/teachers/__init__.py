"""Teachers for distillation (a linear model, finished models, or a file), and their answers for texts and passages."""
