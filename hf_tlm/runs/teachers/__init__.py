"""Teachers: a linear model, finished models, or a file, and what they say of a task's texts and of passages."""
