"""Numbers out of range: recipe, option, value, and part of the message."""

SAMPLE = [
    ("train_tlm", "learning_rate", "nan", "expected a number from 0 to 100; received nan"),
    ("train_tlm", "seeds", "-1", "expected a whole number from 0 to 4,294,967,295; received -1"),
    ("train_tlm", "seeds", "4294967296", "expected a whole number"),
    ("train_tlm", "max_steps", "1e30", "expected a whole number from -1 to 2,147,483,647; received '1e30'"),
    ("train_tlm", "per_device_train_batch_size", "9999999999", "from 1 to 65,536"),
    ("train_tlm", "warmup_steps", "inf", "received inf"),
    ("train_tlm", "vocab_size", "1", "from 6 to"),
    ("train_tlm", "dataloader_num_workers", "100000", "from 0 to 256"),
    ("pretrain", "validation_share", "nan", "received nan"),
    ("pretrain", "total_batch_size", "0", "received 0"),
    ("pretrain", "max_hours", "inf", "received inf"),
    ("retrieve", "k1", "nan", "received nan"),
    ("retrieve", "top_k", "-5", "received -5"),
    ("retrieve", "num_examples", "-1", "received -1"),
]
