"""Options that take a path, and paths that do not exist, are empty, of another kind, or have hostile names."""

# Recipe (and analysis) -> options with paths that are read.
READ = {
    "retrieve": ("task", "corpus", "config", "like"),
    "select_influence": ("task", "subset", "score_model", "config", "tokenizer_name"),
    "train_tlm": ("task", "subset", "model_config", "config", "tokenizer_name", "model_name_or_path"),
    "baseline": ("task", "config"),
    "pretrain": ("corpus", "model_config", "config", "tokenizer_name", "model_name_or_path"),
    "finetune": ("task", "model_name_or_path", "config", "grid", "tokenizer_name"),
    "few_shot": ("task", "model_name_or_path", "config"),
    "predict": ("model_name_or_path", "data", "config"),
    "publish": ("model", "config"),
    "reproduce": ("tasks", "corpus", "config"),
    "quickstart": ("task", "corpus", "config"),
    "analyze heads": ("models", "texts"),
    "analyze words": ("task", "subsets"),
    "analyze embeddings": ("models", "task"),
    "analyze curves": ("run",),
    "analyze cost": ("run",),
    "analyze subsets": ("subsets", "task"),
    "analyze tables": ("run",),
    "analyze report": ("run",),
}
PLACES = ("missing", "empty folder", "empty file", "binary file", "nothing", "newline", "escape", "long", "surrogate")
# Allowed: a config file without keys changes nothing.
FINE = {("config", "empty file")}
# The parser treats names alike for every option, so one option of a recipe is enough.
NAMES = ("newline", "escape", "long", "surrogate")
CASES = [
    (recipe, option, place)
    for recipe, options in READ.items()
    for number, option in enumerate(options)
    for place in PLACES
    if (option, place) not in FINE and (place not in NAMES or number == 0)
]
WRITTEN = ["retrieve", "select_influence", "train_tlm", "baseline", "pretrain", "finetune", "few_shot", "reproduce"]
WRITTEN += ["quickstart", *(name for name in READ if name.startswith("analyze"))]
# Paths that cannot be an output folder.
OUTPUTS = ("a file", "below a file", "long", "surrogate", "null")
